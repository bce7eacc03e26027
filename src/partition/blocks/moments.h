#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// What stages of blocks hold during a backward, by section 7 of docs/planner-files.md, exactly,
/// and without looking at every node of every draft: nodes that follow each other in the file and
/// in a block are one segment, unless what begins or ends between them depends on which other
/// blocks the stage has (memory that several blocks save, tied parameters, gradients of values that
/// cross). Then one figure says what a segment adds to what the stage holds. Several threads may
/// ask.
class Moments {
 public:
  Moments(const cost::GraphProfile& profile, const std::vector<std::vector<uint32_t>>& blocks,
          const Request& request);

  struct Stage {
    double saved_bytes = 0;
    double first_bytes = 0;     ///< most in the first backward: saved, gradients, workspace
    double later_bytes = 0;     ///< most in another one, without gradients
    double gradient_bytes = 0;  ///< that the first one makes
  };
  /// For each stage. `rows`: [stage]. On ranks with several stages, s and s + groups, the gradients
  /// of tied parameters come with the later one. O(segments + what blocks share).
  [[nodiscard]] std::vector<Stage> stages(const std::vector<int>& stage_of, size_t groups,
                                          const std::vector<int64_t>& rows) const;

  /// Memory that several blocks save.
  struct Shared {
    std::vector<uint32_t> blocks;  ///< ascending
    std::vector<double> bytes;     ///< a cost array
  };
  [[nodiscard]] const std::vector<Shared>& shared() const { return shared_; }
  [[nodiscard]] const std::vector<int64_t>& points() const { return profile_.rows; }
  /// Whether the nodes of each block lie behind those of the block before it.
  [[nodiscard]] bool follow_the_file(const std::vector<uint32_t>& order) const;

 private:
  struct Place {
    uint32_t block;
    uint32_t segment;
  };
  struct CrossingValue {
    cost::Size size;
    Place producer;
    std::vector<Place> users;  ///< of each block the last
  };
  struct TiedParam {
    double gradient_bytes = 0;
    std::vector<Place> users;  ///< of each block the last
  };
  /// What a segment adds: when its last node has run forward, and at most during its backward.
  struct AtRows {
    std::vector<double> saved, first, later;  // [segment]
    std::vector<double> shared;               // [shared storage]
  };

  void find_blocks(const std::vector<std::vector<uint32_t>>& blocks);
  void find_storages();
  void find_gradients(const Request& request);
  void find_values();
  void split();
  [[nodiscard]] const AtRows& at(int64_t rows) const;
  [[nodiscard]] AtRows measure(double rows) const;

  const cost::GraphProfile& profile_;
  std::vector<uint32_t> block_of_;                // [node]
  std::vector<uint32_t> first_node_, last_node_;  // [block]
  std::vector<bool> begins_;                      // [node] a segment; one more
  std::vector<uint32_t> segment_of_;              // [node]
  std::vector<uint32_t> begin_;                   // [segment] node; one more
  std::vector<double> segment_gradients_;         // [segment] sums of own_gradients_
  // What is the block's own, by node.
  std::vector<std::pair<uint32_t, const std::vector<double>*>> own_storages_;  // first node, bytes
  std::vector<double> own_gradients_;                                          // made by the node
  std::vector<cost::Size> waiting_;
  // What depends on the draft. Until split(), segments are nodes.
  std::vector<Shared> shared_;
  std::vector<std::vector<Place>> shared_users_;  // of each block the first
  std::vector<TiedParam> tied_;
  std::vector<CrossingValue> crossing_;
  mutable std::mutex mutex_;  // guards known_
  mutable std::map<int64_t, std::unique_ptr<AtRows>> known_;
};

}  // namespace rannc::partition
