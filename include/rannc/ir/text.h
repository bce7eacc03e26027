#pragma once

#include <string>
#include <string_view>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// The text form of a graph, one line per value or node; docs/ir.md shows it. parse(print(g)) == g,
/// and equal graphs print equal bytes.
[[nodiscard]] std::string print(const Graph& graph);

/// Throws ConfigError with line and column.
[[nodiscard]] Graph parse(std::string_view text);

/// The JSON form, with `"format": "rannc-graph", "version": 1`.
[[nodiscard]] std::string to_json(const Graph& graph);
[[nodiscard]] Graph graph_from_json(std::string_view json);

/// 16 hex digits over everything but source lines: equal on every rank that captured the same
/// model.
[[nodiscard]] std::string fingerprint(const Graph& graph);

}  // namespace rannc::ir
