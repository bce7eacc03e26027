#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "partition/dice.h"
#include "partition/score/node_plan.h"
#include "partition/search/search.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::benchmarks {

struct Problem {
  std::string shape;
  cost::GraphProfile profile;
  cost::Cluster cluster;
  partition::Request request;
};

enum class Family {
  small,  ///< two towers, forks, chains, U-nets and encoder-decoders of 9 to 14 nodes on 8 ranks
  large,  ///< the same of 20 to 60 nodes on up to 32 ranks
  cells,  ///< cell networks of 31 to 64 nodes on 16 ranks with slow links between hosts
};
/// Throws ConfigError for another word.
[[nodiscard]] Family family(const std::string& word);

[[nodiscard]] Problem random_problem(uint64_t seed, Family family);

/// The same graph with its nodes in a random topological order: each goes when it is ready and its
/// chance comes, branches at speeds of their own.
[[nodiscard]] cost::GraphProfile reordered(const cost::GraphProfile& profile,
                                           partition::testing::Dice& dice);

struct Answer {
  double ns = std::numeric_limits<double>::infinity();
  bool exact = false;
  double seconds = 0;
  partition::NodePlan plan;                 ///< where `ns` is finite
  std::vector<partition::NodePlan> others;  ///< the best of each arrangement that was found
};
/// The best of searches at the resolutions given, which make_plan() does, too.
[[nodiscard]] Answer solve(const Problem& problem, const partition::SearchOptions& options,
                           std::vector<int> resolutions);

/// "1f1b 8 micro-batches: n0 n1 on 0+2, n2 on 2+1": which nodes are on which ranks.
[[nodiscard]] std::string text_of(const cost::GraphProfile& profile,
                                  const partition::NodePlan& plan);

}  // namespace rannc::benchmarks
