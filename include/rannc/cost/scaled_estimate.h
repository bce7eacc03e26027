#pragma once

#include <array>
#include <string>
#include <vector>

#include "rannc/cost/cost_table.h"
#include "rannc/ir/graph.h"

namespace rannc::cost {

/// What nodes cost that could not be measured, from the others of their graph: the model of a CPU
/// says what a node costs beside them, and they how fast the device in use is. Of nodes with and
/// without matrix products, whose speeds have little to do with each other, each kind goes by its
/// own, and by all that were measured where none of its own was.
class ScaledEstimate {
 public:
  /// `is_measured[node]`: whether its costs in `table` are.
  ScaledEstimate(const ir::Graph& graph, const CostTable& table,
                 const std::vector<bool>& is_measured);

  /// [row index], like `table`; `saved_bytes` is 0.
  [[nodiscard]] std::vector<NodeCost> costs(ir::NodeId node) const;
  /// "0.5 times what the model of a CPU says, as with 3 operators that could be timed".
  [[nodiscard]] std::string basis(ir::NodeId node) const;

 private:
  /// Measured nodes, all rows together.
  struct Sums {
    int nodes = 0;
    double measured_ns = 0;
    double estimated_ns = 0;
    double forward_host_ns = 0;
    double backward_host_ns = 0;
    int forwards = 0;
    int backwards = 0;  ///< those that have one

    void add(const std::vector<NodeCost>& measured, const std::vector<NodeCost>& estimated);
    [[nodiscard]] double factor() const { return nodes == 0 ? 1 : measured_ns / estimated_ns; }
  };

  [[nodiscard]] bool multiplies(ir::NodeId node) const;
  [[nodiscard]] const Sums& like(ir::NodeId node) const;

  const ir::Graph& graph_;
  CostTable estimate_;
  std::array<Sums, 2> of_kind_;  // [whether they multiply matrices]
  Sums of_all_;
};

}  // namespace rannc::cost
