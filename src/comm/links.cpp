#include "rannc/comm/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "rannc/util/log.h"

namespace rannc::comm {
namespace {

/// Bytes and rounds of the messages by which links are measured. Long ones are long beside the
/// pauses of a rank that waits; of the rounds the median counts.
/// tuned by: twelve starts of `rannc run -n 2`, which gave 5 to 55 GB/s with 1 MiB; the rounds were
/// not varied.
/// without it: the bandwidth within a host differs tenfold from start to start, and so do the plan
/// and the size of its buckets.
constexpr int64_t kLatencyBytes = 8;
constexpr std::array<int64_t, 4> kBandwidthBytes = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr int kLatencyRounds = 15;
constexpr int kBandwidthRounds = 7;

/// Messages grow as long as one is expected to take at most so long, one way.
/// tuned by: a bound: a link of 10 Mbit/s is measured in 2 s, one of 1 Mbit/s in 4 s.
/// without it: 4 MiB seven times to and fro take a minute at 10 Mbit/s.
constexpr double kLongestNs = 0.25e9;

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

/// So many messages of so many bytes, to and fro; none: the pair has done.
struct Rounds {
  int64_t bytes = 0;
  int64_t rounds = 0;
};

/// What the asking rank of a pair finds, by `one_way`, which gives the time in ns of messages of a
/// size. It takes few of them where they take long.
template <typename OneWay>
LinkSpeed find_speed(const OneWay& one_way) {
  const auto several = [&](int64_t bytes, double once, int rounds) {
    return once * rounds < kLongestNs ? one_way(bytes, rounds) : once;
  };
  const double small = several(kLatencyBytes, one_way(kLatencyBytes, /*rounds=*/1), kLatencyRounds);
  double before = small, last = small;
  int64_t bytes_before = 0, bytes = 0;
  for (const int64_t next : kBandwidthBytes) {
    // Of the size before it is known how much longer a message takes that has more bytes.
    const double growth = bytes > 0 ? static_cast<double>(next) / static_cast<double>(bytes) : 1;
    if (bytes > 0 && small + (last - small) * growth > kLongestNs) break;
    before = std::exchange(last, one_way(next, /*rounds=*/1));
    bytes_before = std::exchange(bytes, next);
  }
  last = several(bytes, last, kBandwidthRounds);
  if (bytes == kBandwidthBytes.back()) {
    before = small;
    bytes_before = 0;
  }
  // A slow link may let so much pass at once, and slow down what follows: what more bytes take is
  // what counts. A large message that a small one outlasts is noise; a tenth of it is surely
  // transfer.
  const double transfer = std::max(last - before, last / 10);
  return {.latency_ns = small,
          .bandwidth_bytes_per_s = static_cast<double>(bytes - bytes_before) / transfer * 1e9};
}

/// The pair measures, and tells all ranks.
LinkSpeed measure(Communicator& comm, Stream& stream, const MakeMemory& memory, Pair pair,
                  std::span<const int> ranks) {
  const int64_t tag = comm.next_collective_tag(ranks, kPurpose);
  const std::array<int, 2> both{std::min(pair.first, pair.second),
                                std::max(pair.first, pair.second)};
  // The one that asks says what comes next, and the other one does it.
  const auto next = [&](Rounds rounds) {
    broadcast_into(comm, &rounds, sizeof(rounds), pair.first, both, kPurpose);
    if (rounds.rounds == 0) return 0.0;
    return one_way_ns(comm, stream, memory, pair, rounds.bytes, static_cast<int>(rounds.rounds),
                      tag);
  };
  LinkSpeed speed;
  if (comm.rank() == pair.first) {
    speed = find_speed([&](int64_t bytes, int rounds) { return next({bytes, rounds}); });
    next({});
  } else if (comm.rank() == pair.second) {
    for (Rounds rounds{.rounds = 1}; rounds.rounds > 0;) {
      broadcast_into(comm, &rounds, sizeof(rounds), pair.first, both, kPurpose);
      if (rounds.rounds > 0) {
        one_way_ns(comm, stream, memory, pair, rounds.bytes, static_cast<int>(rounds.rounds), tag);
      }
    }
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
  std::optional<Pair> intra;
  for (int a = 0; a < comm.size() && !intra; ++a) {
    for (int b = a + 1; b < comm.size() && !intra; ++b) {
      if (hosts[static_cast<size_t>(a)] == hosts[static_cast<size_t>(b)]) intra = {a, b};
    }
  }
  LinkSpeeds speeds;
  if (intra) speeds.intra_host = measure(comm, stream, memory, *intra, ranks);
  // The slowest link to a host is what a step waits for, wherever it lies in the plan.
  std::set<std::string> measured{hosts.front()};
  for (int other = 1; other < comm.size(); ++other) {
    if (!measured.insert(hosts[static_cast<size_t>(other)]).second) continue;
    const LinkSpeed speed = measure(comm, stream, memory, {0, other}, ranks);
    log::info("comm", fmt::format("the link between {} and {}: {:.3g} MB/s, {:.3g} ms",
                                  hosts.front(), hosts[static_cast<size_t>(other)],
                                  speed.bandwidth_bytes_per_s / 1e6, speed.latency_ns / 1e6));
    LinkSpeed& slowest = speeds.inter_host ? *speeds.inter_host : speeds.inter_host.emplace(speed);
    slowest.latency_ns = std::max(slowest.latency_ns, speed.latency_ns);
    slowest.bandwidth_bytes_per_s =
        std::min(slowest.bandwidth_bytes_per_s, speed.bandwidth_bytes_per_s);
  }
  return speeds;
}

}  // namespace rannc::comm
