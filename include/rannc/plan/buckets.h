#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// Gradients are summed over ranks in buckets up to this size, or, where there are many, up to this
/// share of a reduction: small enough that sums begin early, and so large that there are few of
/// them. Each takes the processor from the backward several times, and where all cores compute,
/// buckets of 1 MiB cost 6 % of a step.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;
inline constexpr int64_t kBucketShare = 64;

/// Gradients that are summed as one array, of one dtype.
struct Bucket {
  std::vector<size_t> parameters;  ///< in the order of the array
  int64_t bytes = 0;
};

/// One parameter's gradient.
struct Gradient {
  ir::DType dtype = ir::DType::float32;
  int64_t bytes = 0;
};

/// Buckets for gradients that are finished in this order. One above the size has its own.
[[nodiscard]] std::vector<Bucket> buckets(const std::vector<Gradient>& gradients);

/// Each of Reduction::parameters, by index. What a backward finishes first, roughly, comes first:
/// the parameter that the forward uses last.
[[nodiscard]] std::vector<Bucket> buckets(const Reduction& reduction, const ir::Graph& graph);

}  // namespace rannc::plan
