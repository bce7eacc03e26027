#pragma once

#include <cstdint>
#include <string>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition::testing {

/// A small planning problem that brute force can solve.
struct Problem {
  std::string shape;  ///< "chain", "skips", "branches", "dag", "u-net"
  cost::GraphProfile profile;
  cost::Cluster cluster;
  Request request;
};

struct ProblemOptions {
  int most_nodes = 8;
  int most_ranks = 8;
  bool interleaved = false;  ///< the request may allow it
  int version = 1;           ///< of the graph and the request
  bool uneven = false;       ///< one of two hosts has fewer devices
  bool speeds = false;       ///< one of two hosts is slower
  int64_t most_cuts = 3000;  ///< ordered; graphs with more get fewer nodes
};

/// Equal seeds give equal problems, on any machine. One to two hosts, ties, groups, frozen
/// parameters, values without gradient, one to three points of cost, slow and fast links, forced
/// choices; about a quarter is tight in memory or does not fit at all.
[[nodiscard]] Problem random_problem(uint64_t seed, const ProblemOptions& options = {});

}  // namespace rannc::partition::testing
