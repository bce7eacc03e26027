#include "rannc/cost/cluster.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

/// The example of docs/planner-files.md.
const std::string kFile = R"(format = "rannc-cluster"
version = 1
hosts = 2
devices_per_host = 2
device_memory_bytes = 100000
[intra_host]
bandwidth_bytes_per_s = 1e9
latency_ns = 10
[inter_host]
bandwidth_bytes_per_s = 1e8
latency_ns = 100
)";

std::string error_of(const std::string& text) {
  try {
    (void)cluster_from_toml(text, "cluster.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = kFile;
  text.replace(text.find(from), from.size(), to);
  return error_of(text);
}

TEST(ClusterFile, ReadsTheExample) {
  const Cluster cluster = cluster_from_toml(kFile, "cluster.toml");
  EXPECT_EQ(cluster, (Cluster{2, 2, 100000, {1e9, 10}, {1e8, 100}, 1}));
  EXPECT_EQ(cluster.ranks(), 4);
  EXPECT_EQ(cluster.host_of(1), 0);
  EXPECT_EQ(cluster.host_of(2), 1);
}

TEST(ClusterFile, ReadsBackWhatItWrites) {
  const Cluster two{2, 4, 8.5e10, {3e11, 1500.5}, {2.5e10, 5000}, 8};
  EXPECT_EQ(cluster_from_toml(to_toml(two), "f"), two);
  const Cluster one{1, 4, 1e10, {1e9, 0}, {}, 1};
  EXPECT_EQ(to_toml(one).find("inter_host"), std::string::npos);
  EXPECT_EQ(cluster_from_toml(to_toml(one), "f"), one);
}

TEST(ClusterFile, SaysOnWhichHostEachRankIs) {
  Cluster dealt{2, 3, 1e10, {1e9, 0}, {1e8, 0}, 1};
  dealt.host_of_rank = {0, 1, 0, 0};
  const Cluster read = cluster_from_toml(to_toml(dealt), "f");
  EXPECT_EQ(read, dealt);
  EXPECT_EQ(read.ranks(), 4);
  EXPECT_EQ(read.host_of(1), 1);
  EXPECT_EQ(read.devices_of(0), 3);
  EXPECT_EQ(ranks_by_host(read, {0, 1}), (std::vector<int>{0, 2, 3, 1}));
  EXPECT_EQ(ranks_by_host(read, {1, 0}), (std::vector<int>{1, 0, 2, 3}));
  EXPECT_EQ(numbered_by_host(read, {0, 1}).host_of_rank, (std::vector<int>{0, 0, 0, 1}));
  EXPECT_EQ(numbered_by_host(read, {1, 0}).host_of_rank, (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(host_orders(read), (std::vector<std::vector<int>>{{0, 1}}));
  const auto error = [&](std::vector<int> hosts) {
    Cluster wrong = dealt;
    wrong.host_of_rank = std::move(hosts);
    return error_of(to_toml(wrong));
  };
  EXPECT_EQ(error({0, 0, 0, 2}),
            "cluster.toml: host_of_rank: there is no host 2 among 2, from 0 on");
  EXPECT_EQ(error({0, 0, 0}), "cluster.toml: host_of_rank: host 1 has no rank");
  EXPECT_EQ(error({0, 1}),
            "cluster.toml: host_of_rank: 1 ranks are on one host, but "
            "devices_per_host, the most, is 3");
  std::string old = to_toml(dealt);
  old.replace(old.find("version = 3"), 11, "version = 2");
  EXPECT_NE(error_of(old).find("host_of_rank: unknown key"), std::string::npos) << error_of(old);
}

TEST(ClusterFile, SaysHowFastEachHostIs) {
  Cluster mixed{3, 2, 1e10, {1e9, 0}, {1e8, 0}, 1};
  EXPECT_EQ(mixed.speed_of(2), 1);
  mixed.speed_of_host = {1, 0.25, 1};
  const Cluster read = cluster_from_toml(to_toml(mixed), "f");
  EXPECT_EQ(read, mixed);
  EXPECT_EQ(read.speed_of(1), 0.25);
  EXPECT_EQ(host_orders(read), (std::vector<std::vector<int>>{{1, 0, 2}, {0, 1, 2}, {0, 2, 1}}));
  EXPECT_EQ(numbered_by_host(read, {1, 0, 2}).speed_of_host, (std::vector<double>{0.25, 1, 1}));
  std::string few = to_toml(mixed);
  few.resize(few.rfind("[[host]]"));
  EXPECT_EQ(error_of(few), "cluster.toml: host: 2 hosts are described, but hosts = 3");
  EXPECT_EQ(cluster_from_toml(few + "[[host]]\n", "f"), mixed);
  EXPECT_NE(error_of(few + "[[host]]\nspeed = 0\n").find("host.speed: expected a number from"),
            std::string::npos);
  EXPECT_NE(error_of(few + "[[host]]\nfast = 1\n").find("host.fast: unknown key"),
            std::string::npos);
}

TEST(ClusterFile, TakesIntegersOfAnySize) {
  std::string text = kFile;
  text.replace(text.find("100000"), 6, "9007199254740993");  // 2^53 + 1
  text.replace(text.find("1e9"), 3, "9223372036854775807");
  const Cluster cluster = cluster_from_toml(text, "cluster.toml");
  EXPECT_EQ(cluster.device_memory_bytes, 0x1p53);
  EXPECT_EQ(cluster.intra_host.bandwidth_bytes_per_s, 0x1p63);
}

TEST(ClusterFile, NamesLineColumnAndKey) {
  EXPECT_EQ(
      error_with("hosts = 2\n", "hosts = 0\n"),
      "cluster.toml: line 3, column 9: hosts: expected an integer from 1 to 16777216, found 0");
  EXPECT_EQ(
      error_with("latency_ns = 100", "latency_ns = -1"),
      "cluster.toml: line 11, column 14: inter_host.latency_ns: expected a finite number of at "
      "least 0, found -1");
  EXPECT_EQ(
      error_with("latency_ns = 100", "latency_ns = inf"),
      "cluster.toml: line 11, column 14: inter_host.latency_ns: expected a finite number of at "
      "least 0, found inf");
  EXPECT_EQ(error_with("devices_per_host", "device_per_host"),
            "cluster.toml: line 4, column 19: device_per_host: unknown key; did you mean "
            "'devices_per_host'?");
  EXPECT_EQ(
      error_with("version = 1", "version = 4"),
      "cluster.toml: line 2, column 11: version: is unknown; this program reads versions 1 to 3");
  EXPECT_NE(error_with("hosts = 2", "price_per_device_hour = 2.5\nhosts = 2")
                .find("price_per_device_hour: unknown key"),
            std::string::npos);
  EXPECT_EQ(error_with("hosts = 2", "hosts = \"2\""),
            "cluster.toml: line 3, column 9: hosts: expected an integer");
  EXPECT_EQ(
      error_with("1e9", "0"),
      "cluster.toml: intra_host.bandwidth_bytes_per_s: must be at least 1e-09, as devices talk "
      "over this link, found 0");
}

TEST(ClusterFile, OfVersionTwoSaysWhatADeviceCosts) {
  std::string text = kFile;
  text.replace(text.find("version = 1"), 11, "version = 2\nprice_per_device_hour = 2.5");
  const Cluster cluster = cluster_from_toml(text, "cluster.toml");
  EXPECT_EQ(cluster.price_per_device_hour, 2.5);
  EXPECT_EQ(cluster_from_toml(to_toml(cluster), "again.toml"), cluster);
}

TEST(ClusterFile, TakesOnlyAsciiOutsideOfComments) {
  EXPECT_EQ(error_with("hosts = 2", "h\u00f6sts = 2"),
            "cluster.toml: line 3, column 2: only comments may hold characters that are not ASCII");
  // This character sends toml++ into code that it calls unreachable.
  EXPECT_EQ(error_with("hosts = 2", "a\u031e"),
            "cluster.toml: line 3, column 2: only comments may hold characters that are not ASCII");
  EXPECT_EQ(error_with("hosts = 2", "hosts = 2  # zw\u00f6lf"), "no error");
}

TEST(ClusterFile, SaysWhatIsMissingOrTwice) {
  const std::string intra_only = kFile.substr(0, kFile.find("[inter_host]"));
  EXPECT_EQ(error_of(intra_only), "cluster.toml: [inter_host] is missing, but hosts = 2");
  EXPECT_EQ(error_with("latency_ns = 10\n", ""), "cluster.toml: intra_host.latency_ns is missing");
  EXPECT_EQ(error_with("hosts = 2\n", "hosts = 2\nhosts = 3\n").substr(0, 22),
            "cluster.toml: line 4, ");
}

}  // namespace
}  // namespace rannc::cost
