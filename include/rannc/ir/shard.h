#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rannc/ir/graph.h"

// Tensor parallelism: a graph in which each rank of a group computes a part of each layer. Terms
// are those of docs/words.md: a factor is a class of dimensions that must be cut alike; between
// nodes stand collectives, which are nodes of the operators below.
namespace rannc::ir {

/// A class of dimensions that are cut together: heads, the inner dimension of a layer, a
/// vocabulary.
struct Factor {
  std::string id;     ///< its first parameter and the dimension: "h.0.mlp.fc.weight:0"
  int64_t units = 0;  ///< into which it can be cut
  std::vector<ValueId> parameters;  ///< that have it
  std::string why_not;              ///< it cannot be cut; empty where it can
};
/// Of all dimensions of parameters that are not of the rows, in the order of the graph.
[[nodiscard]] std::vector<Factor> factors(const Graph& graph);

/// A part [begin, begin + size) of a dimension.
struct Stretch {
  int64_t begin = 0;
  int64_t size = 0;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};
/// Which part of a parameter, buffer or constant a place holds: these stretches of one dimension,
/// side by side.
struct Part {
  std::string name;
  int dim = 0;
  std::vector<Stretch> stretches;
};

/// How the places of a group hold a parameter or buffer.
struct Layout {
  int dim = 0;
  std::vector<std::vector<Stretch>> stretches;  ///< [place]; empty: each holds the whole
};
/// By name.
using Layouts = std::map<std::string, Layout>;

/// One place's graph. Inputs, outputs and what it does not share are whole, and the same on all
/// places. Collectives are nodes of these operators; `pieces` is a list of integers: for each place
/// the number of its stretches, and begin and size of each.
///
///   group::sum(x)                       forward all-reduce, backward nothing
///   group::sum_gradient(x)              forward nothing, backward all-reduce
///   group::all_gather(x, dim, pieces)   forward all-gather, backward slice
///   group::slice(x, dim, pieces)        forward slice, backward all-gather
///   group::max(x)                       forward all-reduce by maximum; takes no gradient
///   group::reduce_scatter(x, dim, pieces)            forward reduce-scatter, backward all-gather
///   group::all_gather_sum_gradient(x, dim, pieces)   forward all-gather, backward reduce-scatter
struct ShardedGraph {
  Graph graph;
  std::vector<std::string> factors;  ///< ids of those that are cut
  std::vector<Part> parts;           ///< parameters, buffers and constants that it has a part of
  /// Nodes that need whole what is cut in front of them, with the factor's id.
  std::vector<std::pair<NodeId, std::string>> gathered;
  std::vector<NodeId> origins;           ///< [node] of the whole graph, which it computes a part of
  std::set<std::string> along_sequence;  ///< values of which it has a part of the sequence
};
/// The factors that cost fewest bytes of collectives for what they cut of the parameters, no two of
/// them in one parameter. The same for all places.
[[nodiscard]] std::vector<std::string> choose_factors(const Graph& graph, int ways);
/// The part of place `place` of `ways`. Without `chosen` it is choose_factors(). Throws ConfigError
/// for a factor that is not there or cannot be cut.
///
/// `held`: state whose layout other stages, or earlier captures, have settled. It is gathered, or
/// cut, where the graph uses it otherwise. Where all state has a layout, the factors are those
/// that these layouts are cut along, whatever `chosen` says. Throws ConfigError for a buffer that
/// the graph writes in another layout.
///
/// `sequence`: what lies between the products (norms, dropout, residuals) holds a part of the
/// sequence on each place (Korthikanti et al. 2022).
[[nodiscard]] ShardedGraph shard(const Graph& graph, int ways, int place,
                                 const std::optional<std::vector<std::string>>& chosen = {},
                                 const Layouts& held = {}, bool sequence = false);
/// Throws InternalError unless the graphs of all places, in order, compute what `whole` computes,
/// as far as types say: each value is replicated, sharded along one dimension or partial. Refused
/// are a shard where the whole is needed, a partial value that is used otherwise than linearly, a
/// replicated value whose gradient is partial but not summed, or summed but not partial, and
/// collectives that places reach in different order. Shares no rule with shard().
void verify_shard(const Graph& whole, const std::vector<ShardedGraph>& places);
/// Whether a node exchanges what the ranks of a group have.
[[nodiscard]] bool is_collective(const Node& node);
/// What a rank sends for a collective, by rings.
struct Traffic {
  int64_t messages = 0;  ///< one after the other
  int64_t bytes = 0;
  Traffic& operator+=(const Traffic& other);
};
struct CollectiveTraffic {
  Traffic forward, backward;
};
/// Of node `node` of a sharded graph, for this number of rows; nothing where it is no collective.
[[nodiscard]] CollectiveTraffic traffic_of(const Graph& sharded, NodeId node, int ways,
                                           int64_t rows);
/// The same of all nodes, forward and backward.
[[nodiscard]] Traffic all_traffic(const Graph& sharded, int ways, int64_t rows);

/// How a group holds the parameters and buffers of a graph that is cut along these factors.
[[nodiscard]] Layouts layouts(const Graph& graph, int ways,
                              const std::vector<std::string>& factors);
/// `whole` with the sizes of what the place of `sharded` holds of each value and makes of each
/// result; results of the graph are whole. No graph to run: what to plan with.
[[nodiscard]] Graph with_sizes_of(const Graph& whole, const ShardedGraph& sharded);
/// Pairs of nodes of `whole` that a border of stages must not part, as what goes from one to the
/// other is cut.
[[nodiscard]] std::vector<std::pair<NodeId, NodeId>> joined_by_parts(const Graph& whole,
                                                                     const ShardedGraph& sharded);

}  // namespace rannc::ir
