#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/segments.h"

namespace rannc::runtime {

/// How the replicas of a stage share its parameters (ZeRO, stage 3): each keeps a part of the rows
/// of the first dimension. The numbers of a bucket are gathered together, shortly before a node
/// needs them, and let go of behind it.
struct Sharing {
  std::vector<std::string> names = {};  ///< of those that are shared; none: nothing is
  std::vector<int> ranks = {};          ///< that share them, ascending
  size_t place = 0;                     ///< of this rank among them
  int64_t bucket_bytes = 0;             ///< that a bucket has at most
};

/// What a stage's graph says of them, the same on all replicas.
struct SharedParameters {
  struct Parameter {
    ir::ValueId value;
    size_t state = 0;  ///< of Interpreter::state_names()
    size_t bucket = 0;
    bool requires_grad = false;
    int64_t rows = 0;   ///< of the first dimension, in all
    int64_t share = 0;  ///< of each replica; the last one may have fewer
  };
  /// Several buckets, each with its numbers; a node's are in none that is behind one's.
  using Buckets = std::vector<size_t>;

  SharedParameters() = default;
  /// `graph` of the stage, in the order in which it runs.
  SharedParameters(const ir::Graph& graph, const std::vector<ir::Segment>& segments,
                   const std::vector<std::string>& state_names, const Sharing& sharing);

  [[nodiscard]] bool empty() const { return parameters.empty(); }

  std::vector<Parameter> parameters;  ///< by their first use
  std::vector<std::vector<size_t>> buckets;
  std::vector<Buckets> needed;       ///< [node]: what it needs whole
  std::vector<bool> needed_back;     ///< [node]: its backward does, too
  std::vector<Buckets> forward;      ///< what is whole, one after the other, in a forward
  std::vector<Buckets> backward;     ///< and in a backward
  std::vector<size_t> scattered;     ///< parameters in the order in which gradients are complete
  std::vector<bool> reached_by_one;  ///< [node]: it depends on a shared parameter

 private:
  void find_needed(const ir::Graph& graph);
  void fill_buckets(const ir::Graph& graph, int64_t bucket_bytes);
  void find_steps(const std::vector<ir::Segment>& segments);
};

}  // namespace rannc::runtime
