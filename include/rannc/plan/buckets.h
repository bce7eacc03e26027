#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/order.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// Size of buckets where nobody has measured the links, and of those that start all together, with
/// no backward beside them; else see predict::bucket_bytes.
/// tuned by: `rannc run -n 2 benchmarks/runtime/bucket_costs.py`, and steps on two busy cores,
/// which are 6 % shorter with 25 MiB than with 1 MiB.
/// without it: each bucket costs two rounds of messages; one bucket for everything would begin when
/// the backward is over.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Between these sizes a bucket is as large as its link asks for. Below, autograd's own work for a
/// parameter counts; above, little is left to begin early.
/// tuned by: `rannc run -n 2 benchmarks/runtime/bucket_costs.py`.
/// without it: a slow link would get a bucket for every parameter, a fast one a single bucket,
/// which begins when the backward is over.
inline constexpr int64_t kLeastBucketBytes = int64_t{1} << 20;
inline constexpr int64_t kMostBucketBytes = int64_t{32} << 20;

/// Where there is much to sum, a bucket may be one part in so many of it, so that there are few of
/// them; the runtime has tags for twice as many.
/// tuned by: a bound: the tags of a call.
/// without it: a model of many gigabytes has hundreds of buckets, and the tags of a call do not
/// suffice.
inline constexpr int64_t kBucketShare = 64;

/// One parameter's gradient.
struct Gradient {
  ir::DType dtype = ir::DType::float32;
  int64_t bytes = 0;
};

/// Numbers of the shard that each of so many ranks has of a bucket; the last ones lie beyond its
/// end where they do not divide.
[[nodiscard]] constexpr int64_t shard_size(int64_t numbers, size_t ranks) {
  const auto count = static_cast<int64_t>(ranks);
  return (numbers + count - 1) / count;
}

/// The same of a bucket of numbers of `dtype`, in bytes.
[[nodiscard]] int64_t shard_bytes(const Bucket& bucket, ir::DType dtype, size_t ranks);

/// Buckets of up to `bucket_bytes` for gradients that are finished in this order. One above the
/// size has its own.
[[nodiscard]] std::vector<Bucket> buckets(const std::vector<Gradient>& gradients,
                                          int64_t bucket_bytes = kBucketBytes);

/// Each of Reduction::parameters, by index. What a backward finishes first, roughly, comes first:
/// the parameter that the forward uses last.
[[nodiscard]] std::vector<Bucket> buckets(const Reduction& reduction, const ir::Graph& graph,
                                          int64_t bucket_bytes = kBucketBytes);
/// The same for many reductions of one graph.
[[nodiscard]] std::vector<Bucket> buckets(const Reduction& reduction, const ir::Graph& graph,
                                          const std::vector<uint32_t>& first_users,
                                          int64_t bucket_bytes);

/// [value]: the first node that takes it, whose backward is the last to add to its gradient; 0
/// where none does. O(graph).
[[nodiscard]] std::vector<uint32_t> first_users(const ir::Graph& graph);

}  // namespace rannc::plan
