#include "comm/half.h"
#include "comm/members.h"
#include "rannc/comm/communicator.h"

namespace rannc::comm {
namespace {

/// One rank's place in a ring over which an array travels in as many chunks as there are ranks.
class Ring {
 public:
  Ring(Communicator& comm, int64_t count, size_t me, std::span<const int> ranks, Purpose purpose)
      : comm_(comm),
        count_(count),
        size_(static_cast<int64_t>(ranks.size())),
        me_(static_cast<int64_t>(me)),
        next_(ranks[(me + 1) % ranks.size()]),
        previous_(ranks[(me + ranks.size() - 1) % ranks.size()]),
        tag_(comm.next_collective_tag(ranks)),
        purpose_(purpose) {}

  [[nodiscard]] int64_t steps() const { return size_ - 1; }
  /// The chunk that is `back` places behind this rank's own.
  [[nodiscard]] int64_t chunk(int64_t back) const { return (me_ - back + 2 * size_) % size_; }
  [[nodiscard]] int64_t begin(int64_t chunk) const { return count_ * chunk / size_; }
  [[nodiscard]] int64_t length(int64_t chunk) const { return begin(chunk + 1) - begin(chunk); }

  /// Sends one chunk of `data` on and receives another into `into`; chunks may be empty.
  template <class T>
  void exchange(const T* data, int64_t sent, T* into, int64_t received) {
    Handle send;
    Handle receive;
    if (const int64_t n = length(received); n > 0) {
      receive = comm_.receive(into, n * int64_t{sizeof(T)}, previous_, tag_, purpose_);
    }
    if (const int64_t n = length(sent); n > 0) {
      send = comm_.send(data + begin(sent), n * int64_t{sizeof(T)}, next_, tag_, purpose_);
    }
    if (receive) receive->wait();
    if (send) send->wait();
  }

 private:
  Communicator& comm_;
  const int64_t count_;
  const int64_t size_;
  const int64_t me_;
  const int next_;
  const int previous_;
  const int64_t tag_;
  const Purpose purpose_;
};

/// Afterwards the chunk after this rank's own holds the sum over all ranks.
template <class T>
void reduce_scatter(Ring& ring, T* data) {
  std::vector<T> received(static_cast<size_t>(ring.length(ring.steps())));  // the longest chunk
  for (int64_t step = 0; step < ring.steps(); ++step) {
    const int64_t chunk = ring.chunk(step + 1);
    ring.exchange(data, ring.chunk(step), received.data(), chunk);
    T* sum = data + ring.begin(chunk);
    for (int64_t i = 0; i < ring.length(chunk); ++i) {
      sum[i] = static_cast<T>(sum[i] + received[static_cast<size_t>(i)]);
    }
  }
}

/// Every chunk is summed on one rank only and copied from there: the same bits everywhere.
template <class T>
void gather_sums(Ring& ring, T* data) {
  for (int64_t step = 0; step < ring.steps(); ++step) {
    const int64_t chunk = ring.chunk(step);
    ring.exchange(data, ring.chunk(step - 1), data + ring.begin(chunk), chunk);
  }
}

template <class T>
void sum(Ring& ring, T* data) {
  reduce_scatter(ring, data);
  gather_sums(ring, data);
}

/// Partial sums travel as float and are rounded once.
template <class Half>
void sum_in_float(Ring& ring, Half* data, int64_t count) {
  std::vector<float> wide(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) wide[static_cast<size_t>(i)] = static_cast<float>(data[i]);
  reduce_scatter(ring, wide.data());
  const int64_t own = ring.chunk(-1);
  for (int64_t i = ring.begin(own); i < ring.begin(own + 1); ++i) {
    data[i] = Half(wide[static_cast<size_t>(i)]);
  }
  gather_sums(ring, data);
}

}  // namespace

void all_reduce_sum(Communicator& comm, void* data, int64_t count, Element element,
                    std::span<const int> ranks, Purpose purpose) {
  const size_t me = index_in(comm, ranks);
  if (ranks.size() == 1 || count == 0) return;
  Ring ring(comm, count, me, ranks, purpose);
  switch (element) {
    case Element::float64:
      return sum(ring, static_cast<double*>(data));
    case Element::float32:
      return sum(ring, static_cast<float*>(data));
    case Element::float16:
      return sum_in_float(ring, static_cast<Float16*>(data), count);
    case Element::bfloat16:
      return sum_in_float(ring, static_cast<BFloat16*>(data), count);
    // Unsigned: sums wrap around instead of being undefined.
    case Element::int64:
      return sum(ring, static_cast<uint64_t*>(data));
    case Element::int32:
      return sum(ring, static_cast<uint32_t*>(data));
    case Element::int8:
    case Element::uint8:
      return sum(ring, static_cast<uint8_t*>(data));
  }
  RANNC_CHECK(false, "unknown element type");
}

}  // namespace rannc::comm
