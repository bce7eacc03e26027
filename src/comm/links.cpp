#include "rannc/comm/links.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

namespace rannc::comm {
namespace {

/// Bytes and rounds of the messages by which links are measured. Long ones are long beside the
/// pauses of a rank that waits; of the rounds the median counts.
/// tuned by: twelve starts of `rannc run -n 2`, which gave 5 to 55 GB/s with 1 MiB; the rounds were
/// not varied.
/// without it: the bandwidth within a host differs tenfold from start to start, and so do the plan
/// and the size of its buckets.
constexpr int64_t kLatencyBytes = 8;
constexpr int64_t kBandwidthBytes = 4 << 20;
constexpr int kLatencyRounds = 15;
constexpr int kBandwidthRounds = 7;

constexpr Purpose kPurpose{.what = "link test"};

using Pair = std::pair<int, int>;
using MakeMemory = std::function<Buffer(int64_t bytes)>;

/// After what the stream was given so far.
Buffer after(const Buffer& memory, Stream& stream) {
  return {memory.data, memory.bytes, stream.record()};
}

/// Half of the median time of a message and its answer of the same size; meaningful on
/// `pair.first`.
double one_way_ns(Communicator& comm, Stream& stream, const MakeMemory& memory, Pair pair,
                  int64_t bytes, int rounds, int64_t tag) {
  const bool asks = comm.rank() == pair.first;
  // There a message goes when its receiver has come: who asks receives after that, and the host
  // waits for neither.
  const bool in_order = comm.is_in_order();
  const int peer = asks ? pair.second : pair.first;
  const Buffer sent = memory(bytes), received = memory(bytes);
  std::vector<double> times;
  for (int round = 0; round <= rounds; ++round) {  // the first one warms up
    const auto begin = std::chrono::steady_clock::now();
    Handle answer;
    const auto receive = [&] {
      answer = comm.receive_into(after(received, stream), peer, tag, kPurpose);
    };
    if (!asks || !in_order) receive();
    if (!asks) stream.wait(*answer);
    const Handle question = comm.send_from(after(sent, stream), peer, tag, kPurpose);
    if (!in_order) question->wait();
    if (asks && in_order) receive();
    if (asks) stream.wait(*answer);
    if (in_order) stream.wait(*question);
    if (const auto there = stream.record()) there->wait();
    const std::chrono::duration<double, std::nano> passed =
        std::chrono::steady_clock::now() - begin;
    if (round > 0) times.push_back(passed.count() / 2);
  }
  const auto middle = times.begin() + rounds / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// The pair measures, and tells all ranks.
LinkSpeed measure(Communicator& comm, Stream& stream, const MakeMemory& memory, Pair pair,
                  std::span<const int> ranks) {
  const int64_t tag = comm.next_collective_tag(ranks, kPurpose);
  LinkSpeed speed;
  if (comm.rank() == pair.first || comm.rank() == pair.second) {
    const auto one_way = [&](int64_t bytes, int rounds) {
      return one_way_ns(comm, stream, memory, pair, bytes, rounds, tag);
    };
    const double small = one_way(kLatencyBytes, kLatencyRounds);
    const double large = one_way(kBandwidthBytes, kBandwidthRounds);
    // A large message that a small one outlasts is noise; a tenth of it is surely transfer.
    const double transfer = std::max(large - small, large / 10);
    speed = {.latency_ns = small,
             .bandwidth_bytes_per_s = static_cast<double>(kBandwidthBytes) / transfer * 1e9};
  }
  broadcast_into(comm, &speed, sizeof(speed), pair.first, ranks, kPurpose);
  return speed;
}

}  // namespace

LinkSpeeds measure_links(Communicator& comm) {
  std::deque<std::vector<char>> blocks;
  return measure_links(comm, *make_host_stream(), [&](int64_t bytes) {
    std::vector<char>& block = blocks.emplace_back(static_cast<size_t>(bytes));
    return Buffer{block.data(), bytes, /*ready=*/{}};
  });
}

LinkSpeeds measure_links(Communicator& comm, Stream& stream, const MakeMemory& memory) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<std::string> hosts = all_gather(comm, comm.host(), ranks, kPurpose);
  std::optional<Pair> intra, inter;
  for (int a = 0; a < comm.size() && !intra; ++a) {
    for (int b = a + 1; b < comm.size() && !intra; ++b) {
      if (hosts[static_cast<size_t>(a)] == hosts[static_cast<size_t>(b)]) intra = {a, b};
    }
  }
  const auto other =
      std::ranges::find_if(hosts, [&](const std::string& host) { return host != hosts.front(); });
  if (other != hosts.end()) inter = {0, static_cast<int>(other - hosts.begin())};

  LinkSpeeds speeds;
  if (intra) speeds.intra_host = measure(comm, stream, memory, *intra, ranks);
  if (inter) speeds.inter_host = measure(comm, stream, memory, *inter, ranks);
  return speeds;
}

}  // namespace rannc::comm
