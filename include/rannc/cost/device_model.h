#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rannc/cost/cost_table.h"
#include "rannc/ir/graph.h"

namespace rannc::cost {

/// Matrix work in one data type: the peak, and the share of it that each kind of kernel reaches.
struct MatrixRate {
  double flops_per_s = 0;
  double matmul = 1;
  double convolution = 1;
  double attention = 1;
  double recurrent = 1;
  /// What matmul is multiplied by where rows of an operand or of the result are no multiple of 8
  /// numbers, for which there are kernels of an older kind only.
  double unaligned = 1;
};

/// Share of the memory bandwidth that each kind of kernel reaches.
struct MemoryRate {
  double bytes_per_s = 0;
  double pointwise = 1;
  double reduction = 1;   ///< sums, normalisations, softmax, pooling, losses
  double gather = 1;      ///< embeddings, indexing, scattering
  double batch_norm = 0;  ///< batch normalisation of 16 bits; 0: as `reduction`
};

/// Roofline of one device: what an operator costs when it cannot be measured.
struct DeviceModel {
  std::string name;  ///< "h100"
  MatrixRate float64, float32, float16, bfloat16;
  /// Convolutions in float32 run at this peak where there is one, as torch has them by default.
  double tf32_flops_per_s = 0;
  MemoryRate memory;
  double kernel_ns = 0;  ///< of each kernel whatever its size, on the device
  double call_ns = 0;    ///< least distance of two kernels that a program launches; 0: none
  double memory_bytes = 0;
};

/// By its name in docs/device-models.md. Throws ConfigError that names all, and the closest.
[[nodiscard]] DeviceModel device_model(std::string_view name);

/// Costs of every node at `rows`: max(flops / rate, bytes / bandwidth) with the rates of the
/// operator's kind, plus the fixed time of its kernels. `saved_bytes` as estimated from operands
/// and results (each storage once, at the first node that saves it) unless `saved[node][row]` is
/// given. Roofline: Williams, Waterman, Patterson, CACM 2009.
[[nodiscard]] CostTable estimate(const ir::Graph& graph, const DeviceModel& device,
                                 const std::vector<int64_t>& rows,
                                 const std::vector<std::vector<int64_t>>& saved = {});

/// Matrix products, convolutions, attention and recurrent layers of a training step.
struct MatrixWork {
  double flops = 0;
  double peak_s = 0;  ///< seconds that they take at the peaks of their data types
};

/// Of all rows together: the forward, and one product more for each matrix whose gradient is
/// wanted. What recompute repeats does not count, as in "model FLOPs" (Chowdhery et al., PaLM,
/// 2022).
[[nodiscard]] MatrixWork training_work(const ir::Graph& graph, const DeviceModel& device,
                                       int64_t rows);

}  // namespace rannc::cost
