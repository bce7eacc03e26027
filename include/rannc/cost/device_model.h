#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rannc/cost/cost_table.h"
#include "rannc/ir/graph.h"

namespace rannc::cost {

/// Roofline of one device: what an operator costs when it cannot be measured.
struct DeviceModel {
  std::string name;  ///< "h100"
  double float32_flops_per_s = 0;
  double half_flops_per_s = 0;  ///< float16 and bfloat16 matrix work
  double bandwidth_bytes_per_s = 0;
  double launch_ns = 0;   ///< fixed cost of one operator call
  double efficiency = 1;  ///< share of the peak that matrix work reaches
  double memory_bytes = 0;
};

/// v100, a100, h100, h200, cpu. Throws ConfigError naming the closest.
[[nodiscard]] DeviceModel device_model(std::string_view name);

/// Costs of every node at `rows` by max(flops / peak, bytes / bandwidth) + launch, backward twice
/// the forward where a gradient flows. `saved_bytes` as estimated from operands and results (each
/// storage once, at the first node that saves it) unless `saved[node][row]` is given.
/// Roofline: Williams, Waterman, Patterson, CACM 2009.
[[nodiscard]] CostTable estimate(const ir::Graph& graph, const DeviceModel& device,
                                 const std::vector<int64_t>& rows,
                                 const std::vector<std::vector<int64_t>>& saved = {});

}  // namespace rannc::cost
