#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/api.h"
#include "device.h"
#include "room.h"

/// One rank's part of a communicator. Aborted ones are kept, so that their use is seen.
struct ncclComm {
  enum class State { joining, ready, failed, aborted };

  int rank = 0;
  int size = 0;
  int number = 0;               // 0: the root; its splits have others
  std::vector<int> root_ranks;  // [rank]
  rannc::standin_nccl::Device* device = nullptr;
  std::shared_ptr<rannc::standin_nccl::Room> room;
  std::shared_ptr<rannc::standin_nccl::Room> root;
  bool blocking = true;
  bool in_order = false;                // its config asks for it
  std::atomic<void*> stream = nullptr;  // of its last call
  std::atomic<State> state = State::joining;
  std::atomic<const char*> inside = nullptr;           // the function that a thread is in
  std::atomic<int> unfinished = 0;                     // calls that the device has not ended
  std::atomic<bool> never_ends = false;                // joining, because of a fault
  std::atomic<int> splitting = 0;                      // splits of it that are in progress
  std::atomic<ncclComm*> split_from = nullptr;         // whose split it is that is in progress
  std::vector<bool> met;                               // [rank]: has had a call before
  bool has_summed = false;                             // it has had a collective
  std::vector<std::pair<void*, int64_t>> connections;  // their memory, and how much it is
  std::atomic<int64_t> connecting_until_ns = 0;
  int splits = 0;
  int64_t meetings = 0;  // of the device's thread: of collectives

  /// The first failure of this rank's calls, or of another rank's.
  [[nodiscard]] std::string error();
  void fail(rannc::comm::nccl::Result result, const std::string& text);
  [[nodiscard]] rannc::comm::nccl::Result failed_with();
  [[nodiscard]] bool is_stopped() const {
    const ncclComm* const from = split_from;
    return state == State::aborted || (from != nullptr && from->state == State::aborted);
  }

  std::thread joiner;

 private:
  std::mutex mutex_;
  std::string error_;
  rannc::comm::nccl::Result result_ = rannc::comm::nccl::kSuccess;
};

namespace rannc::standin_nccl {

using Comm = ::ncclComm*;

/// One call, as the device runs it.
struct Work {
  Comm comm = nullptr;
  Call call;
  int peer = -1;
  const char* from = nullptr;
  char* to = nullptr;
  void* stream = nullptr;
};

/// Joins the others of the file `name`, in a thread of its own unless it blocks.
void join(Comm comm, const std::string& name);
/// `ended` is called on a thread of its own, when `comm` is ready or has failed.
void join_split(Comm parent, Comm comm, int color, int key, std::function<void()> ended);

/// Whether all ranks of this call have made it alike, as far as they have come; else the error is
/// everybody's.
bool agree(const Work& work);
/// Calls of a rank of the root, in this process, that the device has begun.
int calls_of(int rank);
/// Gives them to the device, as one.
void run_on_device(std::vector<Work> works);

}  // namespace rannc::standin_nccl
