#include "rannc/predict/bucket_size.h"

#include <gtest/gtest.h>

#include "rannc/plan/buckets.h"

namespace rannc::predict {
namespace {

constexpr double kGb = 1e9;
constexpr int64_t kMib = int64_t{1} << 20;

TEST(BucketBytes, KeepTheCostOfABucketAtAFewPercentOfItsTransfer) {
  // A ring of four: 4 (30 us + 100 us) * 0.8 GB/s / 0.03 = 13.9 MB, and 16 MiB is the power of two.
  const cost::Link link{.bandwidth_bytes_per_s = 0.8 * kGb, .latency_ns = 30e3};
  EXPECT_EQ(bucket_bytes(link, 4), 16 * kMib);
  for (int ranks : {2, 3, 4, 6}) {
    const double bytes = static_cast<double>(bucket_bytes(link, ranks));
    const double messages = 2 * (ranks - 1);
    const double transfer_ns = messages / ranks * bytes / link.bandwidth_bytes_per_s * 1e9;
    EXPECT_LE(messages * (link.latency_ns + kBucketWakeNs), kBucketOverhead * transfer_ns);
  }
}

TEST(BucketBytes, GrowWithLatencyBandwidthAndRanks) {
  const cost::Link link{.bandwidth_bytes_per_s = 0.25 * kGb, .latency_ns = 20e3};
  // 2 * 120 us * 0.25 GB/s / 0.03 = 2 MB, which is below 2 MiB.
  EXPECT_EQ(bucket_bytes(link, 2), 2 * kMib);
  EXPECT_EQ(bucket_bytes(link, 6), 8 * kMib);                        // 6 MB
  EXPECT_EQ(bucket_bytes({0.25 * kGb, 380e3}, 2), 8 * kMib);         // 4 times as long
  EXPECT_EQ(bucket_bytes({1 * kGb, link.latency_ns}, 2), 8 * kMib);  // 4 times as fast
}

TEST(BucketBytes, HaveBounds) {
  // A slow link: 2 * 150 us * 10 MB/s / 0.03 = 100 KB.
  EXPECT_EQ(bucket_bytes({0.01 * kGb, 50e3}, 2), plan::kLeastBucketBytes);
  EXPECT_EQ(bucket_bytes({1, 0}, 1), plan::kLeastBucketBytes);
  // Without latency, the wakes are left: 2 * 100 us * 0.5 GB/s / 0.03 = 3.3 MB.
  EXPECT_EQ(bucket_bytes({0.5 * kGb, 0}, 2), 4 * kMib);
  EXPECT_EQ(bucket_bytes({1e30, 1e30}, 1 << 20), plan::kMostBucketBytes);
}

plan::Plan plan_on(const std::vector<std::vector<plan::Rank>>& groups) {
  plan::Plan plan;
  for (const std::vector<plan::Rank>& ranks : groups) plan.stages.emplace_back().ranks = ranks;
  return plan;
}

TEST(BucketBytes, OfAPlanAreWhatItsMostDemandingStageAsksFor) {
  // Within a host 2 * 120 us * 1 GB/s / 0.03 = 8 MB, between hosts 2 * 160 us * 0.25 GB/s / 0.03
  // = 2.7 MB; 4 ranks over both hosts: 5.3 MB.
  const cost::Cluster cluster{.hosts = 2,
                              .devices_per_host = 2,
                              .device_memory_bytes = 1,
                              .intra_host = {1 * kGb, 20e3},
                              .inter_host = {0.25 * kGb, 60e3}};
  EXPECT_EQ(bucket_bytes(plan_on({{0, 2}, {1, 3}}), cluster), 4 * kMib);
  EXPECT_EQ(bucket_bytes(plan_on({{0}, {1}, {2, 3}}), cluster), 8 * kMib);
  EXPECT_EQ(bucket_bytes(plan_on({{0, 1, 2, 3}}), cluster), 8 * kMib);
  EXPECT_EQ(bucket_bytes(plan_on({{0}, {1}}), cluster), plan::kMostBucketBytes);
}

}  // namespace
}  // namespace rannc::predict
