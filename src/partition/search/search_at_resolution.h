#pragma once

#include <cstdint>
#include <vector>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/block_model.h"
#include "partition/blocks/pieces.h"
#include "partition/improve/refine_by_piece.h"
#include "partition/problem/progress.h"
#include "partition/problem/search_space.h"
#include "partition/problem/stop.h"
#include "partition/search/search.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// One search at one resolution: pieces are joined to at most `max_blocks` blocks, the search runs
/// over them, and the borders of its best arrangements are refined piece by piece.
class Attempt {
 public:
  struct Problem {
    const cost::GraphProfile& profile;
    const cost::Cluster& cluster;
    const Request& request;
    const std::vector<Piece>& pieces;
    SearchSpace space;  ///< `pins` is filled here, from `pin_of_node`
    SearchOptions options;
  };
  Attempt(const Problem& problem, int max_blocks, Stop& stop);

  [[nodiscard]] bool found() const { return !result_.best.empty(); }
  /// Requires found().
  [[nodiscard]] const NodePlan& winner() const { return winner_; }
  [[nodiscard]] const std::vector<std::vector<uint32_t>>& blocks() const { return blocks_; }
  [[nodiscard]] const Best& best() const { return result_.best; }
  [[nodiscard]] const BlockModel& model() const { return model_; }
  [[nodiscard]] const SearchSpace& space() const { return problem_.space; }
  [[nodiscard]] int64_t examined() const { return result_.examined; }
  /// The winner is the best plan of the whole request.
  [[nodiscard]] bool exact() const { return exact_; }
  /// Why nothing fits.
  [[nodiscard]] std::string shortfall() const;

 private:
  void zoom_in(Stop& stop);

  Problem problem_;
  Progress told_;  // of all of this; that in the options of `problem_` is the search's
  std::vector<std::vector<uint32_t>> blocks_;
  cost::GraphProfile profile_;  // of blocks
  BlockCosts costs_;
  BlockModel model_;
  SearchResult result_;
  NodePlan winner_;
  bool exact_ = false;
};

}  // namespace rannc::partition
