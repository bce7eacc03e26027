#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "comm/half.h"
#include "comm/members.h"
#include "comm/rounds.h"
#include "rannc/comm/communicator.h"

namespace rannc::comm {
namespace {

/// One rank's place in a ring over which an array travels in as many chunks as there are ranks.
class Ring {
 public:
  Ring(int64_t count, size_t me, std::span<const int> ranks)
      : count_(count),
        size_(static_cast<int64_t>(ranks.size())),
        me_(static_cast<int64_t>(me)),
        next_(ranks[(me + 1) % ranks.size()]),
        previous_(ranks[(me + ranks.size() - 1) % ranks.size()]) {}

  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] int64_t steps() const { return size_ - 1; }
  /// The chunk that is `back` places behind this rank's own.
  [[nodiscard]] int64_t chunk(int64_t back) const { return (me_ - back + 2 * size_) % size_; }
  [[nodiscard]] int64_t begin(int64_t chunk) const { return count_ * chunk / size_; }
  [[nodiscard]] int64_t length(int64_t chunk) const { return begin(chunk + 1) - begin(chunk); }

  /// Sends one chunk of `data` on and receives another into `into`; empty chunks are left out.
  template <class T>
  [[nodiscard]] std::vector<Message> exchange(T* data, int64_t sent, T* into,
                                              int64_t received) const {
    constexpr int64_t kSize{sizeof(T)};
    std::vector<Message> messages;
    if (const int64_t n = length(received); n > 0) {
      messages.push_back({.sends = false, .data = into, .bytes = n * kSize, .peer = previous_});
    }
    if (const int64_t n = length(sent); n > 0) {
      messages.push_back(
          {.sends = true, .data = data + begin(sent), .bytes = n * kSize, .peer = next_});
    }
    return messages;
  }

 private:
  const int64_t count_;
  const int64_t size_;
  const int64_t me_;
  const int next_;
  const int previous_;
};

/// What becomes of a sum: all of it everywhere, or each rank's shard of it there.
enum class Result { everywhere, sharded };

/// The sum of one array: first every chunk goes round the ring and is added to, until the chunk
/// after a rank's own holds the sum over all ranks; then the sums go round, each as it is, so that
/// all ranks get the same bits. Sharded, chunks start one rank later, end at their own, and that is
/// all. Halves travel as float (`Sum`) and are rounded once.
template <class T, class Sum = T>
class RingSum final : public Rounds {
 public:
  RingSum(Ring ring, T* data, Result result)
      : ring_(ring),
        data_(data),
        first_(result == Result::sharded ? 1 : 0),
        rounds_(result == Result::sharded ? ring.steps() : 2 * ring.steps()),
        received_(uninitialized(longest_received())) {
    if constexpr (kWide) {
      wide_ = uninitialized(ring_.count());
      for (int64_t i = 0; i < ring_.count(); ++i) wide_[i] = static_cast<Sum>(data[i]);
    }
  }

  [[nodiscard]] std::vector<Message> next() override {
    std::vector<Message> messages;
    while (messages.empty()) {
      if (round_ >= 0 && round_ < ring_.steps()) add_received(to_receive(round_));
      if (++round_ == ring_.steps()) round_own_sum();
      if (round_ == rounds_) break;
      messages = round_ < ring_.steps() ? to_add(round_) : to_copy(round_ - ring_.steps());
    }
    return messages;
  }

 private:
  static constexpr bool kWide = !std::is_same_v<T, Sum>;

  /// Zeros would be written over, at the cost of another pass over the memory.
  static std::unique_ptr<Sum[]> uninitialized(int64_t count) {
    return std::make_unique_for_overwrite<Sum[]>(static_cast<size_t>(count));
  }

  /// The chunk that comes to be added to, and in the end is whole.
  [[nodiscard]] int64_t to_receive(int64_t step) const { return ring_.chunk(step + 1 + first_); }

  [[nodiscard]] int64_t longest_received() const {
    int64_t longest = 0;
    for (int64_t step = 0; step < ring_.steps(); ++step) {
      longest = std::max(longest, ring_.length(to_receive(step)));
    }
    return longest;
  }

  [[nodiscard]] Sum* sums() {
    if constexpr (kWide) {
      return wide_.get();
    } else {
      return data_;
    }
  }

  [[nodiscard]] std::vector<Message> to_add(int64_t step) {
    return ring_.exchange(sums(), ring_.chunk(step + first_), received_.get(), to_receive(step));
  }

  [[nodiscard]] std::vector<Message> to_copy(int64_t step) {
    const int64_t chunk = ring_.chunk(step);
    return ring_.exchange(data_, ring_.chunk(step - 1), data_ + ring_.begin(chunk), chunk);
  }

  void add_received(int64_t chunk) {
    Sum* const sum = sums() + ring_.begin(chunk);
    const Sum* const received = received_.get();
    const int64_t length = ring_.length(chunk);
    for (int64_t i = 0; i < length; ++i) sum[i] = static_cast<Sum>(sum[i] + received[i]);
  }

  void round_own_sum() {
    if constexpr (kWide) {
      const int64_t own = ring_.chunk(first_ - 1);
      for (int64_t i = ring_.begin(own); i < ring_.begin(own + 1); ++i) {
        data_[i] = T(wide_[i]);
      }
      wide_.reset();
    }
  }

  const Ring ring_;
  T* const data_;
  const int64_t first_;   ///< how far behind its own the chunk is that a rank sends first
  const int64_t rounds_;  ///< of messages
  std::unique_ptr<Sum[]> received_;
  std::unique_ptr<Sum[]> wide_;
  int64_t round_ = -1;  ///< of the messages under way
};

/// Shards go round, each as it is.
class RingGather final : public Rounds {
 public:
  RingGather(Ring ring, char* data) : ring_(ring), data_(data) {}

  [[nodiscard]] std::vector<Message> next() override {
    if (++round_ >= ring_.steps()) return {};
    const int64_t came = ring_.chunk(round_ + 1);
    return ring_.exchange(data_, ring_.chunk(round_), data_ + ring_.begin(came), came);
  }

 private:
  const Ring ring_;
  char* const data_;
  int64_t round_ = -1;  ///< of the messages under way
};

std::unique_ptr<Rounds> ring_sum(Ring ring, void* data, Element element, Result result) {
  switch (element) {
    case Element::float64:
      return std::make_unique<RingSum<double>>(ring, static_cast<double*>(data), result);
    case Element::float32:
      return std::make_unique<RingSum<float>>(ring, static_cast<float*>(data), result);
    case Element::float16:
      return std::make_unique<RingSum<Float16, float>>(ring, static_cast<Float16*>(data), result);
    case Element::bfloat16:
      return std::make_unique<RingSum<BFloat16, float>>(ring, static_cast<BFloat16*>(data), result);
    // Unsigned: sums wrap around instead of being undefined.
    case Element::int64:
      return std::make_unique<RingSum<uint64_t>>(ring, static_cast<uint64_t*>(data), result);
    case Element::int32:
      return std::make_unique<RingSum<uint32_t>>(ring, static_cast<uint32_t*>(data), result);
    case Element::int8:
    case Element::uint8:
      return std::make_unique<RingSum<uint8_t>>(ring, static_cast<uint8_t*>(data), result);
  }
  RANNC_CHECK(false, "unknown element type");
}

Handle start_sum(Communicator& comm, void* data, int64_t count, Element element,
                 std::span<const int> ranks, Purpose purpose, std::shared_ptr<void> owner,
                 std::optional<int64_t> tag, Result result) {
  const size_t me = index_in(comm, ranks);
  if (!tag) tag = comm.next_collective_tag(ranks, purpose);
  return start(comm, ring_sum(Ring(count, me, ranks), data, element, result), *tag, purpose,
               std::move(owner));
}

}  // namespace

Shard own_shard(const Communicator& comm, int64_t bytes, Element element,
                std::span<const int> ranks) {
  const auto me = static_cast<int64_t>(index_in(comm, ranks));
  const auto count = static_cast<int64_t>(ranks.size());
  RANNC_CHECK(bytes % (count * size_bytes(element)) == 0,
              fmt::format("{} bytes do not fall into {} equal parts of whole elements of {} bytes",
                          bytes, count, size_bytes(element)));
  return {me * (bytes / count), bytes / count};
}

Handle start_all_reduce_sum(Communicator& comm, void* data, int64_t count, Element element,
                            std::span<const int> ranks, Purpose purpose,
                            std::shared_ptr<void> owner, std::optional<int64_t> tag) {
  return start_sum(comm, data, count, element, ranks, purpose, std::move(owner), tag,
                   Result::everywhere);
}

Handle start_reduce_scatter_sum(Communicator& comm, void* data, int64_t count, Element element,
                                std::span<const int> ranks, Purpose purpose,
                                std::shared_ptr<void> owner, std::optional<int64_t> tag) {
  (void)own_shard(comm, count * size_bytes(element), element, ranks);  // equal parts
  return start_sum(comm, data, count, element, ranks, purpose, std::move(owner), tag,
                   Result::sharded);
}

Handle start_all_gather_shards(Communicator& comm, void* data, int64_t count, Element element,
                               std::span<const int> ranks, Purpose purpose,
                               std::shared_ptr<void> owner, std::optional<int64_t> tag) {
  const int64_t bytes = count * size_bytes(element);
  (void)own_shard(comm, bytes, element, ranks);  // equal parts
  if (!tag) tag = comm.next_collective_tag(ranks, purpose);
  return start(comm,
               std::make_unique<RingGather>(Ring(bytes, index_in(comm, ranks), ranks),
                                            static_cast<char*>(data)),
               *tag, purpose, std::move(owner));
}

void all_reduce_sum(Communicator& comm, void* data, int64_t count, Element element,
                    std::span<const int> ranks, Purpose purpose) {
  start_all_reduce_sum(comm, data, count, element, ranks, purpose)->wait();
}

}  // namespace rannc::comm
