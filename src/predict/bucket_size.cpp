#include "rannc/predict/bucket_size.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "rannc/plan/buckets.h"
#include "rannc/plan/mesh.h"

namespace rannc::predict {

int64_t bucket_bytes(const cost::Link& link, int ranks) {
  const double bytes = ranks * (link.latency_ns + kBucketWakeNs) * link.bandwidth_bytes_per_s /
                       1e9 / kBucketOverhead;
  // Before the conversion: a link of a file may be as fast as one likes.
  const double sane = std::clamp(bytes, static_cast<double>(plan::kLeastBucketBytes),
                                 static_cast<double>(plan::kMostBucketBytes));
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::ceil(sane))));
}

int64_t bucket_bytes(const plan::Plan& plan, const cost::Cluster& cluster) {
  int64_t most = 0;
  for (const plan::Stage& stage : plan.stages) {
    const plan::StageMesh mesh = plan::mesh_of(stage);
    if (mesh.replicas() < 2) continue;
    const std::vector<plan::Rank> ring = mesh.ranks_of_place(0);
    const bool one_host = std::ranges::all_of(
        ring, [&](plan::Rank rank) { return cluster.host_of(rank) == cluster.host_of(ring[0]); });
    most = std::max(
        most, bucket_bytes(one_host ? cluster.intra_host : cluster.inter_host, mesh.replicas()));
  }
  return most > 0 ? most : plan::kMostBucketBytes;
}

}  // namespace rannc::predict
