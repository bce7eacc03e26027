#pragma once

#include <cstdint>

#include "rannc/cost/cluster.h"
#include "rannc/plan/plan.h"

namespace rannc::predict {

/// What a message of a sum costs beyond the link: the thread that moves it wakes, adds, and takes
/// the core and its caches from the backward.
/// tuned by: `rannc run -n 2 benchmarks/runtime/bucket_costs.py`.
/// without it: buckets within a host would be of 1 MiB, and their messages would take 30 ms more of
/// a step than those of 16 MiB.
inline constexpr double kBucketWakeNs = 100e3;

/// Part of a bucket's transfer that these costs may be.
/// tuned by: a bound: what a step may lose to them, little beside the noise of runs.
/// without it: with more, buckets are smaller and messages take time of the backward; with less,
/// the last bucket is longer, which nothing hides.
inline constexpr double kBucketOverhead = 0.03;

/// Bytes of a bucket of gradients that `ranks` ranks sum over `link`: small, so that sums begin
/// early and the last one, which no backward hides, is short; and so large that what a bucket costs
/// beyond its bytes is at most kBucketOverhead of its transfer. A ring of r ranks sends 2 (r - 1)
/// messages of a bucket of b bytes, each of b / r. With the link's latency L (ns) and bandwidth W
/// (bytes/s), and kBucketWakeNs w,
///
///     2 (r - 1) (L + w) <= kBucketOverhead * 2 (r - 1) / r * b / W * 1e9
///     b >= r (L + w) W / 1e9 / kBucketOverhead
///
/// rounded up to a power of two, so that it is the same when the link is measured again, and at
/// least plan::kLeastBucketBytes, at most plan::kMostBucketBytes.
[[nodiscard]] int64_t bucket_bytes(const cost::Link& link, int ranks);

/// The same for all sums of `plan`: the largest that one of its stages asks for;
/// plan::kMostBucketBytes where none has replicas.
[[nodiscard]] int64_t bucket_bytes(const plan::Plan& plan, const cost::Cluster& cluster);

}  // namespace rannc::predict
