#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition::brute {

// Sections 5 to 7 of docs/planner-files.md for graphs so small that every set of nodes is a
// number. Shares no code with src/partition, so that it can judge it.

constexpr int kMostNodes = 9;
constexpr int kMostRanks = 8;

using Mask = uint32_t;  ///< a set of nodes: bit k is node k

/// A set of nodes as a stage, with b rows on each of its ranks.
struct Share {
  bool known = false;
  double forward_ns = 0, backward_ns = 0;
  double issue_forward_ns = 0, issue_backward_ns = 0;  // of the host, within the two above
  double saved = 0, in = 0, gin = 0, out = 0, workspace = 0;
  double in_gradients = 0, out_gradients = 0;
};

/// The backwards of a set of nodes, by section 7.
struct Backward {
  double first = 0, later = 0;  ///< most that they hold; the first one makes the gradients
  double gradients = 0;
};

/// The parameters of a set of nodes. A parameter counts once.
struct Weights {
  double bytes = 0, gradient = 0, optimizer = 0;
  [[nodiscard]] double sum() const { return bytes + gradient + optimizer; }
};

/// The values that go from one set of nodes to another.
struct Crossing {
  bool forward = false, backward = false;  ///< there is a value; one with a gradient
  double forward_per_row = 0, forward_fixed = 0, backward_per_row = 0, backward_fixed = 0;
};

class Tables {
 public:
  Tables(const cost::GraphProfile& profile, const cost::Cluster& cluster, const Request& request);

  [[nodiscard]] int nodes() const { return nodes_; }
  [[nodiscard]] Mask all() const { return (Mask{1} << nodes_) - 1; }
  [[nodiscard]] Mask sources(int node) const { return sources_[static_cast<size_t>(node)]; }
  /// Nodes that must share the stage of `node`, itself included.
  [[nodiscard]] Mask group(int node) const { return groups_[static_cast<size_t>(node)]; }
  [[nodiscard]] double memory_limit() const { return memory_limit_; }

  [[nodiscard]] const Share& share(Mask mask, int64_t rows);
  /// `made`: the gradients of their parameters are there before.
  [[nodiscard]] const Backward& backward(Mask mask, int64_t rows, Mask made);
  [[nodiscard]] bool by_moments() const { return profile_.version > 1; }
  [[nodiscard]] const Weights& weights(Mask mask) const { return weights_[mask]; }
  [[nodiscard]] const Crossing& crossing(Mask from, Mask to);

  /// Sets of stages that reduce tied parameters together, in the page's order: bit s is stage s.
  struct Tied {
    uint32_t stages = 0;
    double gradient_bytes = 0;
  };
  void tied(const std::vector<Mask>& stages, std::vector<Tied>& result) const;
  /// Gradient bytes of the parameters that only `stages[stage]` uses.
  [[nodiscard]] double own_gradient_bytes(Mask stage) const;

 private:
  struct Value {
    int producer = -1;  ///< -1: a graph input
    Mask users = 0;
    cost::Size size;
    bool grad = true;
  };
  struct Param {
    Mask users = 0;
    double bytes = 0, gradient = 0, optimizer = 0;
  };

  [[nodiscard]] Share measure(Mask mask, int64_t rows) const;
  [[nodiscard]] Backward run_backward(Mask mask, double rows, Mask made) const;

  const cost::GraphProfile& profile_;
  int nodes_;
  double memory_limit_;
  std::vector<Mask> sources_, groups_;
  std::vector<Value> values_;
  std::vector<Param> params_;
  std::vector<Weights> weights_;            ///< by mask
  std::vector<std::vector<Share>> shares_;  ///< by rows and mask
  std::vector<Crossing> crossings_;         ///< by from * 2^nodes + to
  std::vector<bool> crossing_known_;
  std::map<std::tuple<Mask, int64_t, Mask>, Backward> backwards_;
};

}  // namespace rannc::partition::brute
