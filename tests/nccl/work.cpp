#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>

#include "comm/half.h"
#include "communicator.h"
#include "faults.h"

namespace rannc::standin_nccl {
namespace {

using comm::nccl::DataType;

int64_t size_of(int type) {
  switch (type) {
    case comm::nccl::kInt8:
    case comm::nccl::kUint8:
      return 1;
    case comm::nccl::kFloat16:
    case comm::nccl::kBfloat16:
      return 2;
    case comm::nccl::kInt32:
    case comm::nccl::kFloat32:
      return 4;
    default:
      return 8;
  }
}

/// Rounds after each addition, as a device does that adds what comes over each link.
template <class T>
void add(char* to, const char* from, int64_t count) {
  auto* const sum = reinterpret_cast<T*>(to);
  const auto* const other = reinterpret_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_arithmetic_v<T>) {
      sum[i] = static_cast<T>(sum[i] + other[i]);
    } else {
      sum[i] = T(static_cast<float>(sum[i]) + static_cast<float>(other[i]));
    }
  }
}

void add(int type, char* to, const char* from, int64_t count) {
  switch (type) {
    case comm::nccl::kInt8:
      return add<int8_t>(to, from, count);
    case comm::nccl::kUint8:
      return add<uint8_t>(to, from, count);
    case comm::nccl::kInt32:
      return add<int32_t>(to, from, count);
    case comm::nccl::kInt64:
      return add<int64_t>(to, from, count);
    case comm::nccl::kFloat16:
      return add<comm::Float16>(to, from, count);
    case comm::nccl::kBfloat16:
      return add<comm::BFloat16>(to, from, count);
    case comm::nccl::kFloat32:
      return add<float>(to, from, count);
    default:
      return add<double>(to, from, count);
  }
}

/// Moves bytes between two ranks. The calls end when both have moved them all; a send that is
/// buffered earlier.
class Message {
 public:
  explicit Message(const Work& work)
      : work_(work),
        sends_(work.call.kind == Kind::send),
        channel_(sends_ ? work.comm->room->channel(work.comm->rank, work.peer)
                        : work.comm->room->channel(work.peer, work.comm->rank)),
        left_(work.call.count * size_of(work.call.type)) {
    header_.call = work.call;
  }

  /// As far as the other side is; true: done.
  bool move_on() { return sends_ ? write() : read(); }
  [[nodiscard]] bool can_move() {  // with the room's lock
    if (sends_) {
      if (header_left_ > 0 || left_ > 0) return channel_.written - channel_.read < kChannel;
      return is_buffered() || channel_.written == channel_.read;
    }
    return channel_.written > channel_.read || (header_left_ == 0 && left_ == 0);
  }

 private:
  struct Header {
    Call call;
  };

  bool write() {
    header_left_ -=
        push(reinterpret_cast<const char*>(&header_) + sizeof(Header) - header_left_, header_left_);
    if (header_left_ == 0) {
      const int64_t moved = push(work_.from, left_);
      work_.from += moved;
      left_ -= moved;
    }
    if (header_left_ > 0 || left_ > 0) return false;
    const Room::Lock lock(*work_.comm->room);
    return is_buffered() || channel_.written == channel_.read;
  }

  bool read() {
    if (header_left_ > 0) {
      header_left_ -=
          pull(reinterpret_cast<char*>(&header_) + sizeof(Header) - header_left_, header_left_);
      if (header_left_ > 0) return false;
      if (header_.call.count != work_.call.count || header_.call.type != work_.call.type) {
        work_.comm->room->fail("rank " + std::to_string(work_.peer) + " made " +
                               describe(header_.call) + ", and rank " +
                               std::to_string(work_.comm->rank) + " " + describe(work_.call));
        return false;
      }
    }
    const int64_t moved = pull(work_.to, left_);
    work_.to += moved;
    left_ -= moved;
    return left_ == 0;
  }

  int64_t push(const char* from, int64_t most) {
    uint64_t written = 0;
    int64_t bytes = 0;
    {
      const Room::Lock lock(*work_.comm->room);
      written = channel_.written;
      bytes = std::min<int64_t>(most, static_cast<int64_t>(kChannel - (written - channel_.read)));
    }
    for (int64_t i = 0; i < bytes;) {
      const size_t at = (written + static_cast<uint64_t>(i)) % kChannel;
      const int64_t part = std::min<int64_t>(bytes - i, static_cast<int64_t>(kChannel - at));
      std::memcpy(channel_.bytes.data() + at, from + i, static_cast<size_t>(part));
      i += part;
    }
    {
      const Room::Lock lock(*work_.comm->room);
      channel_.written += static_cast<uint64_t>(bytes);
    }
    work_.comm->room->changed();
    return bytes;
  }

  int64_t pull(char* to, int64_t most) {
    uint64_t read = 0;
    int64_t bytes = 0;
    {
      const Room::Lock lock(*work_.comm->room);
      read = channel_.read;
      bytes = std::min<int64_t>(most, static_cast<int64_t>(channel_.written - read));
    }
    for (int64_t i = 0; i < bytes;) {
      const size_t at = (read + static_cast<uint64_t>(i)) % kChannel;
      const int64_t part = std::min<int64_t>(bytes - i, static_cast<int64_t>(kChannel - at));
      std::memcpy(to + i, channel_.bytes.data() + at, static_cast<size_t>(part));
      i += part;
    }
    {
      const Room::Lock lock(*work_.comm->room);
      channel_.read += static_cast<uint64_t>(bytes);
    }
    work_.comm->room->changed();
    return bytes;
  }

  Work work_;
  const bool sends_;
  Channel& channel_;
  Header header_{};
  int64_t header_left_ = sizeof(Header);
  int64_t left_;
};

bool is_message(const Work& work) {
  return work.call.kind == Kind::send || work.call.kind == Kind::receive;
}

bool wait(Comm comm, const std::function<bool()>& reached) {
  return comm->room->wait(reached, [comm] { return comm->is_stopped() || !comm->error().empty(); });
}

/// Until all ranks are here.
bool meet(Comm comm) {
  const auto all = static_cast<uint64_t>(++comm->meetings) * static_cast<uint64_t>(comm->size);
  {
    const Room::Lock lock(*comm->room);
    ++comm->room->shared().arrivals;
  }
  comm->room->changed();
  return wait(comm, [&] { return comm->room->shared().arrivals >= all; });
}

/// Piece by piece: everybody shows his, then everybody takes what he needs of all.
void run_collective(const Work& work) {
  Comm comm = work.comm;
  const int64_t size = size_of(work.call.type);
  const int64_t most = static_cast<int64_t>(kPiece) / size;
  const bool scatters = work.call.kind == Kind::reduce_scatter;
  const bool sums = work.call.kind != Kind::all_gather;
  const int64_t total = work.call.count * (scatters ? comm->size : 1);
  for (int64_t begin = 0; begin < total || begin == 0; begin += most) {
    const int64_t count = std::min(most, total - begin);
    const auto bytes = static_cast<size_t>(count * size);
    std::memcpy(comm->room->piece(comm->rank), work.from + begin * size, bytes);
    if (!meet(comm)) return;
    if (sums) {
      std::vector<char> sum(comm->room->piece(0), comm->room->piece(0) + bytes);
      for (int rank = 1; rank < comm->size; ++rank) {
        add(work.call.type, sum.data(), comm->room->piece(rank), count);
      }
      const int64_t mine = scatters ? comm->rank * work.call.count : 0;
      const int64_t first = std::max(begin, mine);
      const int64_t last = std::min(begin + count, mine + work.call.count);
      if (first < last) {
        std::memcpy(work.to + (first - mine) * size, sum.data() + (first - begin) * size,
                    static_cast<size_t>((last - first) * size));
      }
    } else {
      for (int rank = 0; rank < comm->size; ++rank) {
        std::memcpy(work.to + (rank * work.call.count + begin) * size, comm->room->piece(rank),
                    bytes);
      }
    }
    if (!meet(comm)) return;
    if (total == 0) return;
  }
}

/// What a rank sends to itself, in one group.
void run_own(const std::vector<Work>& works) {
  std::vector<const Work*> sends, receives;
  for (const Work& work : works) {
    if (!is_message(work) || work.peer != work.comm->rank) continue;
    (work.call.kind == Kind::send ? sends : receives).push_back(&work);
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    std::memmove(receives[i]->to, sends[i]->from,
                 static_cast<size_t>(sends[i]->call.count * size_of(sends[i]->call.type)));
  }
}

/// All at once, but those to one peer one after the other.
void run_messages(const std::vector<Work>& works) {
  std::vector<Message> messages;
  std::vector<std::pair<int, bool>> lanes;  // peer, and whether it sends
  for (const Work& work : works) {
    if (!is_message(work) || work.peer == work.comm->rank) continue;
    messages.emplace_back(work);
    lanes.emplace_back(work.peer, work.call.kind == Kind::send);
  }
  if (messages.empty()) return;
  Comm comm = works.front().comm;
  std::vector<bool> done(messages.size(), false);
  const auto each_first = [&](auto see) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (done[i]) continue;
      bool first = true;
      for (size_t j = 0; j < i; ++j) first = first && (done[j] || lanes[j] != lanes[i]);
      if (first) see(i);
    }
  };
  while (std::find(done.begin(), done.end(), false) != done.end()) {
    const bool goes_on = wait(comm, [&] {
      bool any = false;
      each_first([&](size_t i) { any = any || messages[i].can_move(); });
      return any;
    });
    if (!goes_on) return;
    each_first([&](size_t i) { done[i] = messages[i].move_on(); });
  }
}

/// Calls of this process, by rank of the root, that the device has begun.
std::atomic<int>& count_of(int rank) {
  static std::array<std::atomic<int>, kMostRanks> counts{};
  return counts.at(static_cast<size_t>(rank));
}

/// Whether the call is to go on.
bool suffer(const Work& work) {
  Comm comm = work.comm;
  const int rank = comm->root_ranks[static_cast<size_t>(comm->rank)];
  const int number = ++count_of(rank);
  if (fault("dies", rank) == number) kill(getpid(), SIGKILL);
  if (fault("stops", rank) == number) kill(getpid(), SIGSTOP);
  if (fault("never_completes", rank) == number) {
    while (!comm->is_stopped()) usleep(1000);
    return false;
  }
  if (fault("async_error", rank) == number) {
    comm->fail(comm::nccl::kRemoteError, "NET/Socket: peer closed the connection (stand-in)");
    return false;
  }
  return true;
}

void run(const std::vector<Work>& works) {
  bool all = true;
  for (const Work& work : works) all = suffer(work) && all;
  if (!all) return;
  run_own(works);
  for (const Work& work : works) {
    if (!is_message(work)) run_collective(work);
  }
  run_messages(works);
}

/// What the bytes take on their way, from when all who take part are there.
void travel(const std::vector<Work>& works) {
  const double rate = bytes_per_s();
  if (rate <= 0) return;
  int64_t bytes = 0;
  for (const Work& work : works) bytes += work.call.count * size_of(work.call.type);
  std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / rate));
}

/// The k-th calls of two ranks that both take part in are one.
bool match(const Call& mine, const Call& other) {
  const bool message = mine.kind == Kind::send || mine.kind == Kind::receive;
  const bool kinds = message ? (mine.kind == Kind::send && other.kind == Kind::receive) ||
                                   (mine.kind == Kind::receive && other.kind == Kind::send)
                             : mine.kind == other.kind;
  return kinds && mine.communicator == other.communicator && mine.count == other.count &&
         mine.type == other.type && mine.group == other.group && mine.in_group == other.in_group;
}

}  // namespace

int calls_of(int rank) { return count_of(rank); }

bool agree(const Work& work) {
  Comm comm = work.comm;
  if (is_message(work) && (is_buffered() || work.peer == comm->rank)) return true;
  const int me = comm->root_ranks[static_cast<size_t>(comm->rank)];
  std::vector<int> others;
  if (is_message(work)) {
    others.push_back(comm->root_ranks[static_cast<size_t>(work.peer)]);
  } else {
    for (const int rank : comm->root_ranks) {
      if (rank != me) others.push_back(rank);
    }
  }
  Shared& shared = comm->root->shared();
  const auto made = [&](int of, int with) -> int64_t& {
    return shared.made[static_cast<size_t>(of)][static_cast<size_t>(with)];
  };
  std::string wrong;
  for (const int other : others) {
    const bool room = comm->root->wait(
        [&] { return made(me, other) - made(other, me) < static_cast<int64_t>(kCallsAhead); },
        [comm] { return comm->is_stopped(); });
    if (!room) return false;
    const Room::Lock lock(*comm->root);
    const int64_t number = made(me, other)++;
    comm->root->call(me, other, number) = work.call;
    if (made(other, me) <= number) continue;
    const Call& theirs = comm->root->call(other, me, number);
    if (match(work.call, theirs)) continue;
    wrong = "call " + std::to_string(number + 1) + " of two ranks: rank " + std::to_string(me) +
            " made " + describe(work.call) + ", and rank " + std::to_string(other) + " " +
            describe(theirs);
  }
  comm->root->changed();
  if (wrong.empty()) return true;
  comm->root->fail(wrong);
  return false;
}

void run_on_device(std::vector<Work> works) {
  Comm comm = works.front().comm;
  ++comm->unfinished;
  Device& device = *comm->device;
  const int64_t ticket = device.next_ticket();
  void* const stream = works.front().stream;
  comm->stream = stream;
  device.give(stream, [works = std::move(works), comm, ticket, &device] {
    if (is_one_at_a_time()) {
      while (device.ended() < ticket && !comm->is_stopped()) usleep(20);
    }
    run(works);
    travel(works);
    device.end_one();
    --comm->unfinished;
  });
}

}  // namespace rannc::standin_nccl
