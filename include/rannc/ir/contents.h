#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"

// What a graph holds: questions that one walk over its values or nodes answers.
namespace rannc::ir {

/// The dtypes of all values.
[[nodiscard]] std::set<DType> dtypes(const Graph& graph);

/// Whether some value requires a gradient, so that the graph can train.
[[nodiscard]] bool requires_grad(const Graph& graph);

/// Names of the parameters and buffers, in the order of the graph.
[[nodiscard]] std::vector<std::string> state_names(const Graph& graph);

/// Parameters, buffers and constants, in the order of the graph.
[[nodiscard]] std::vector<ValueId> held_values(const Graph& graph);

/// What some node writes, by the name of the value that holds its memory.
[[nodiscard]] std::set<std::string> written_names(const Graph& graph);

/// The first node that reads a value of this name or alias.
[[nodiscard]] std::optional<NodeId> first_reader(const Graph& graph, const std::string& name);

/// For each module path, the last node that ran inside it and has exactly one result. The root
/// module has none.
[[nodiscard]] std::map<std::string, NodeId> module_ends(const Graph& graph);

/// Nodes with Node::by_share, in graph order.
[[nodiscard]] std::vector<NodeId> by_share_nodes(const Graph& graph);

/// Nodes with Node::whole_batch, in graph order.
[[nodiscard]] std::vector<NodeId> whole_batch_nodes(const Graph& graph);

}  // namespace rannc::ir
