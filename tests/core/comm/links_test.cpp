#include "rannc/comm/links.h"

#include <gtest/gtest.h>

#include <mutex>

#include "comm/ranks.h"

namespace rannc::comm {
namespace {

TEST(Links, OfOneHostAreMeasuredAndAgreedOn) {
  std::mutex mutex;
  std::vector<LinkSpeeds> all;
  on_ranks(3, [&](Communicator& comm) {
    const LinkSpeeds speeds = measure_links(comm);
    const std::scoped_lock lock(mutex);
    all.push_back(speeds);
  });
  ASSERT_EQ(all.size(), 3u);
  for (const LinkSpeeds& speeds : all) {
    ASSERT_TRUE(speeds.intra_host);
    EXPECT_FALSE(speeds.inter_host);
    EXPECT_GT(speeds.intra_host->latency_ns, 0);
    EXPECT_GT(speeds.intra_host->bandwidth_bytes_per_s, 0);
    EXPECT_EQ(speeds.intra_host->latency_ns, all[0].intra_host->latency_ns);
    EXPECT_EQ(speeds.intra_host->bandwidth_bytes_per_s, all[0].intra_host->bandwidth_bytes_per_s);
  }
}

TEST(Links, OfARankAloneThereAreNone) {
  on_ranks(1, [](Communicator& comm) {
    const LinkSpeeds speeds = measure_links(comm);
    EXPECT_FALSE(speeds.intra_host || speeds.inter_host);
  });
}

}  // namespace
}  // namespace rannc::comm
