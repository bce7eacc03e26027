// A stand-in for libnccl.so.2: the functions that are used of it, over the stand-in accelerator's
// streams, between processes of this machine, and strict where the real one is vague.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "communicator.h"
#include "faults.h"

namespace {

using namespace rannc::comm::nccl;
using namespace rannc::standin_nccl;
using Communicator = ::ncclComm*;
using State = ncclComm::State;

constexpr int64_t kConnecting_ns = 2'000'000;  // a peer's first call is under way so long

thread_local int group_depth = 0;
thread_local std::vector<Work> group;
thread_local std::vector<Communicator> aborted;  // in the group
thread_local std::string last_error;

std::mutex all_mutex;
std::vector<Communicator>& all_communicators() {
  static auto& all = *new std::vector<Communicator>;
  return all;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Read when the library starts, as the real one does.
bool launches_in_order() {
  static const bool is_set = [] {
    const char* const value = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return value != nullptr && std::string(value) != "0";
  }();
  return is_set;
}

Result refuse(Communicator comm, const std::string& text) {
  last_error = text;
  if (comm != nullptr) comm->fail(kInvalidUsage, text);
  return kInvalidUsage;
}

std::string who(Communicator comm) {
  return "rank " + std::to_string(comm->root_ranks.empty()
                                      ? comm->rank
                                      : comm->root_ranks[static_cast<size_t>(comm->rank)]);
}

/// Waits for what an aborted communicator has under way.
void finish_abort(Communicator comm) {
  const int rank =
      comm->root_ranks.empty() ? comm->rank : comm->root_ranks[static_cast<size_t>(comm->rank)];
  while (fault("abort_hangs", rank) != 0) usleep(1000);
  while (comm->splitting > 0) usleep(100);
  if (comm->joiner.joinable()) comm->joiner.join();
  while (comm->unfinished > 0) usleep(100);
  for (const auto& [address, bytes] : std::exchange(comm->connections, {})) {
    comm->device->give_back(address, bytes);
  }
  if (comm->room) comm->room->unlink();
}

/// At its first message with a rank, or its first collective: false if the device has no room.
bool hold_connection(Communicator comm) {
  const int64_t bytes = connection_bytes();
  if (bytes == 0) return true;
  void* const address = comm->device->take(bytes);
  if (address == nullptr) {
    last_error = who(comm) + " has no memory on its device for a connection";
    comm->fail(kUnhandledCudaError, last_error);
    return false;
  }
  comm->connections.emplace_back(address, bytes);
  return true;
}

/// A thread that is in a function of a communicator; another one there is an error.
class Inside {
 public:
  Inside(Communicator comm, const char* name) : comm_(comm) {
    const char* const other = comm->inside.exchange(name);
    if (other == nullptr) return;
    clash_ = who(comm) + " is in " + name + " while another thread is in " + other;
  }
  ~Inside() { comm_->inside = nullptr; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] const std::string& clash() const { return clash_; }

 private:
  Communicator comm_;
  std::string clash_;
};

Result use(Communicator comm, const char* name) {
  if (comm == nullptr) return refuse(nullptr, std::string(name) + " without a communicator");
  switch (comm->state) {
    case State::joining:
      return refuse(comm, std::string(name) + " on a communicator before it is ready");
    case State::aborted:
      last_error = std::string(name) + " on a communicator after ncclCommAbort";
      return kInvalidUsage;
    case State::failed:
      last_error = comm->error();
      return comm->failed_with();
    case State::ready:
      break;
  }
  if (comm->splitting > 0 || now_ns() < comm->connecting_until_ns) {
    return refuse(comm, std::string(name) + " while the call before is in progress");
  }
  if (comm->failed_with() != kSuccess) {
    last_error = comm->error();
    return comm->failed_with();
  }
  return kSuccess;
}

/// Communicators on one device whose launches nobody orders.
std::string unordered(const Work& work) {
  if (launches_in_order() || work.comm->in_order) return "";
  const std::lock_guard lock(all_mutex);
  for (Communicator other : all_communicators()) {
    if (other == work.comm || other->device != work.comm->device || other->unfinished == 0 ||
        other->is_stopped() || other->stream == work.stream) {
      continue;
    }
    return who(work.comm) + " makes " + describe(work.call) + " while a call of communicator " +
           std::to_string(other->number) + " runs, without NCCL_LAUNCH_ORDER_IMPLICIT=1";
  }
  return "";
}

/// All works of a group, or one alone.
Result issue(std::vector<Work> works) {
  // How many calls with one peer there are is what the other side has to do alike.
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i].call.group == 0) continue;
    int count = 0;
    for (const Work& other : works) {
      if (other.comm != works[i].comm || other.peer != works[i].peer) continue;
      if (&other == &works[i]) works[i].call.in_group = count;
      ++count;
    }
    works[i].call.group = count;
  }
  bool connects = false;
  std::vector<Communicator> comms;
  for (const Work& work : works) {
    Communicator comm = work.comm;
    if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
    if (const std::string text = unordered(work); !text.empty()) return refuse(comm, text);
    if (work.peer == comm->rank) {
      int64_t balance = 0;
      for (const Work& other : works) {
        if (other.comm != comm || other.peer != comm->rank) continue;
        balance += other.call.kind == Kind::send ? other.call.count : -other.call.count;
      }
      if (work.call.group == 0 || balance != 0) {
        return refuse(comm, who(comm) + " sends to itself without a receive in the same group");
      }
    }
    if (!agree(work)) {
      last_error = comm->error();
      return kInvalidUsage;
    }
    if (work.peer >= 0 && !comm->met[static_cast<size_t>(work.peer)]) {
      comm->met[static_cast<size_t>(work.peer)] = true;
      connects = connects || !comm->blocking;
      if (!hold_connection(comm)) return kUnhandledCudaError;
    }
    if (work.peer < 0 && !std::exchange(comm->has_summed, true) && !hold_connection(comm)) {
      return kUnhandledCudaError;
    }
  }
  for (Communicator comm : comms) {
    std::vector<Work> mine;
    for (const Work& work : works) {
      if (work.comm == comm) mine.push_back(work);
    }
    if (connects) comm->connecting_until_ns = now_ns() + kConnecting_ns;
    run_on_device(std::move(mine));
  }
  return connects ? kInProgress : kSuccess;
}

/// Whether the call has hung in here, until its communicator ended.
bool hangs(Communicator comm) {
  static std::array<std::atomic<int>, kMostRanks> calls{};  // of this process, by rank of the root
  const int rank = comm->root_ranks[static_cast<size_t>(comm->rank)];
  const int number = ++calls.at(static_cast<size_t>(rank));
  while (fault("stays_inside", rank) == number) usleep(1000);
  const bool is_wrong = fault("hangs_inside", rank) == number;
  while (is_wrong && !comm->is_stopped()) usleep(1000);
  return is_wrong;
}

Result call(const char* name, Work work) {
  Communicator comm = work.comm;
  if (const Result result = use(comm, name); result != kSuccess) return result;
  const Inside inside(comm, name);
  if (!inside.clash().empty()) return refuse(comm, inside.clash());
  if (hangs(comm)) return use(comm, name);
  if (work.peer >= comm->size || work.call.count < 0 || work.stream == nullptr) {
    return refuse(comm, who(comm) + " makes " + describe(work.call) + " with rank " +
                            std::to_string(work.peer) + " of " + std::to_string(comm->size));
  }
  for (const void* address :
       {static_cast<const void*>(work.from), static_cast<const void*>(work.to)}) {
    if (address != nullptr && comm->device->find(address) == nullptr && work.call.count > 0) {
      return refuse(comm, who(comm) + " makes " + describe(work.call) +
                              " with memory that is not the device's");
    }
  }
  if (work.from != nullptr) work.from = static_cast<const char*>(comm->device->find(work.from));
  if (work.to != nullptr) work.to = static_cast<char*>(comm->device->find(work.to));
  work.call.communicator = comm->number;
  if (group_depth > 0) {
    work.call.group = 1;
    group.push_back(work);
    return kSuccess;
  }
  return issue({work});
}

Work work_of(Kind kind, size_t count, int type, Communicator comm, void* stream) {
  Work work;
  work.comm = comm;
  work.call.kind = kind;
  work.call.count = static_cast<int64_t>(count);
  work.call.type = type;
  work.stream = stream;
  return work;
}

Result made(Communicator comm, Communicator* result) {
  *result = comm;
  {
    const std::lock_guard lock(all_mutex);
    all_communicators().push_back(comm);
  }
  return kSuccess;
}

Result outcome_of_init(Communicator comm) {
  if (!comm->blocking) return kInProgress;
  last_error = comm->error();
  return comm->state == State::ready ? kSuccess : comm->failed_with();
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = version_of(-1);
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  (void)launches_in_order();
  static std::atomic<int> count = 0;
  *id = {};
  const std::string name = "/standin-nccl-" + std::to_string(getpid()) + "-" +
                           std::to_string(++count) + "-" + std::to_string(std::random_device()());
  std::strncpy(id->internal, name.c_str(), kUniqueIdBytes - 1);
  return kSuccess;
}

static bool asks_for_order(const Config* config) {
  if (config == nullptr || config->size < sizeof(OrderedConfig)) return false;
  return reinterpret_cast<const OrderedConfig*>(config)->launch_order_implicit == 1;
}

Result ncclCommInitRankConfig(Communicator* comm, int ranks, UniqueId id, int rank,
                              Config* config) {
  (void)launches_in_order();
  if (config != nullptr && config->magic != kConfigMagic) {
    return refuse(nullptr, "a config that was not initialised");
  }
  if (config != nullptr && config->version > static_cast<unsigned>(version_of(rank))) {
    return refuse(nullptr, "a config of a newer version");
  }
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    return refuse(nullptr, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  auto* const made_one = new ncclComm;
  try {
    made_one->device = &Device::current();
    made_one->rank = rank;
    made_one->size = ranks;
    made_one->blocking = config == nullptr || config->blocking != 0;
    made_one->in_order = asks_for_order(config);
    join(made_one, id.internal);
  } catch (const std::exception& error) {
    last_error = error.what();
    delete made_one;
    return kUnhandledCudaError;
  }
  made(made_one, comm);
  return outcome_of_init(made_one);
}

Result ncclCommSplit(Communicator comm, int color, int key, Communicator* result, Config* config) {
  if (const Result used = use(comm, "ncclCommSplit"); used != kSuccess) return used;
  const Inside inside(comm, "ncclCommSplit");
  if (!inside.clash().empty()) return refuse(comm, inside.clash());
  if (group_depth > 0) return refuse(comm, "ncclCommSplit in a group");
  if (color >= kMostRanks) return refuse(comm, "the color is too large for this stand-in");
  if (color == kNoColor) {
    Shared& shared = comm->room->shared();
    {
      const Room::Lock lock(*comm->room);
      Split& split = shared.splits.at(static_cast<size_t>(comm->splits++));
      split.color.at(static_cast<size_t>(comm->rank)) = kNoColor;
      ++split.callers;
    }
    comm->room->changed();
    *result = nullptr;
    return kSuccess;
  }
  auto* const made_one = new ncclComm;
  made_one->blocking = config == nullptr ? comm->blocking : config->blocking != 0;
  made_one->in_order = asks_for_order(config);
  // As the real one: it is said late which one was made, when the parent is through with it, and
  // of one that does not block success is said at once.
  *result = nullptr;
  join_split(comm, made_one, color, key, [=] { made(made_one, result); });
  const Result outcome = outcome_of_init(made_one);
  return outcome == kInProgress ? kSuccess : outcome;
}

Result ncclCommGetAsyncError(Communicator comm, Result* error) {
  if (comm == nullptr || comm->state == State::aborted) {
    return refuse(nullptr, "ncclCommGetAsyncError on a communicator after ncclCommAbort");
  }
  *error = comm->failed_with();
  if (*error == kSuccess && (comm->state == State::joining || comm->splitting > 0 ||
                             now_ns() < comm->connecting_until_ns)) {
    *error = kInProgress;
  }
  return kSuccess;
}

/// Of this rank only: what others wait for does not come, until they abort, too. In a group all are
/// aborted before one is waited for.
Result ncclCommAbort(Communicator comm) {
  if (comm == nullptr || comm->state.exchange(State::aborted) == State::aborted) {
    return refuse(nullptr, "ncclCommAbort twice");
  }
  if (comm->room) comm->room->changed();
  if (group_depth > 0) {
    aborted.push_back(comm);
  } else {
    finish_abort(comm);
  }
  return kSuccess;
}

Result ncclSend(const void* data, size_t count, DataType type, int peer, Communicator comm,
                void* stream) {
  Work work = work_of(Kind::send, count, type, comm, stream);
  work.peer = peer;
  work.from = static_cast<const char*>(data);
  return call("ncclSend", work);
}

Result ncclRecv(void* data, size_t count, DataType type, int peer, Communicator comm,
                void* stream) {
  Work work = work_of(Kind::receive, count, type, comm, stream);
  work.peer = peer;
  work.to = static_cast<char*>(data);
  return call("ncclRecv", work);
}

Result ncclAllReduce(const void* from, void* to, size_t count, DataType type, RedOp op,
                     Communicator comm, void* stream) {
  if (op != kSum) return refuse(comm, "this stand-in only sums");
  Work work = work_of(Kind::all_reduce, count, type, comm, stream);
  work.from = static_cast<const char*>(from);
  work.to = static_cast<char*>(to);
  return call("ncclAllReduce", work);
}

Result ncclReduceScatter(const void* from, void* to, size_t count, DataType type, RedOp op,
                         Communicator comm, void* stream) {
  if (op != kSum) return refuse(comm, "this stand-in only sums");
  Work work = work_of(Kind::reduce_scatter, count, type, comm, stream);
  work.from = static_cast<const char*>(from);
  work.to = static_cast<char*>(to);
  return call("ncclReduceScatter", work);
}

Result ncclAllGather(const void* from, void* to, size_t count, DataType type, Communicator comm,
                     void* stream) {
  Work work = work_of(Kind::all_gather, count, type, comm, stream);
  work.from = static_cast<const char*>(from);
  work.to = static_cast<char*>(to);
  return call("ncclAllGather", work);
}

Result ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

Result ncclGroupEnd() {
  if (group_depth == 0) return refuse(nullptr, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return kSuccess;
  for (Communicator comm : std::exchange(aborted, {})) finish_abort(comm);
  if (group.empty()) return kSuccess;
  return issue(std::exchange(group, {}));
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(Communicator comm) {
  thread_local std::string text;
  text = comm == nullptr ? last_error : comm->error();
  static std::atomic<bool> warned = false;
  if (comm != nullptr && comm->state == State::joining && fault("warns", comm->rank) != 0) {
    text = warned.exchange(true) ? "the second warning" : "Connect to 192.0.2.1<4791> failed";
  }
  return text.c_str();
}

// What this library has read of NCCL_LAUNCH_ORDER_IMPLICIT, for tests.
int standin_nccl_launches_in_order() { return launches_in_order() ? 1 : 0; }
// How many calls the device has begun for a rank of this process: faults go by this number.
int standin_nccl_calls(int rank) { return calls_of(rank); }

}  // extern "C"
