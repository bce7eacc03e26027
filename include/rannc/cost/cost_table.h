#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::cost {

/// Cost of one node at one number of rows.
struct NodeCost {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;  ///< without recompute
  int64_t saved_bytes = 0;  ///< kept from forward to backward, parameters excluded
  /// Peak of temporaries while it runs: in the forward without its results, in the backward with
  /// the gradients that come in and go out.
  int64_t workspace_bytes = 0;
  /// What the host takes to issue it to an accelerator; 0 on a CPU, where it is in the times above.
  int64_t forward_host_ns = 0;
  int64_t backward_host_ns = 0;
  friend bool operator==(const NodeCost&, const NodeCost&) = default;
};

/// What every node of one graph costs at a few numbers of rows, measured or computed.
struct CostTable {
  std::vector<int64_t> rows;                ///< strictly rising, >= 1
  std::vector<std::vector<NodeCost>> node;  ///< [node index][row index]; all zero for free nodes

  friend bool operator==(const CostTable&, const CostTable&) = default;
};

/// Throws ConfigError, naming the node and the number, unless `table` fits `graph`.
void verify(const CostTable& table, const ir::Graph& graph);

/// `"format": "rannc-cost-table", "version": 1`.
[[nodiscard]] std::string to_json(const CostTable& table);
[[nodiscard]] CostTable cost_table_from_json(std::string_view json);

/// What has to be timed: two nodes with equal signatures cost the same. Operator, dtypes, shapes
/// (with their dependence on the rows), literals, and which operands require a gradient.
[[nodiscard]] std::string signature(const ir::Graph& graph, ir::NodeId node);

}  // namespace rannc::cost
