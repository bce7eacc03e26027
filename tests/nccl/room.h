#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rannc::standin_nccl {

constexpr int kMostRanks = 16;
constexpr size_t kPiece = size_t{256} << 10;    // bytes of a collective that move at once
constexpr size_t kChannel = size_t{128} << 10;  // bytes between two ranks that move at once
constexpr size_t kCallsAhead = 1024;            // that a rank may make before another one does
constexpr int kSplits = 64;

enum class Kind : int { none, send, receive, all_reduce, reduce_scatter, all_gather };

/// One call of a rank, as far as the others have to make it alike.
struct Call {
  Kind kind = Kind::none;
  int communicator = 0;  // number among those of one root
  int64_t count = 0;
  int type = 0;
  int group = 0;     // 0: in no group; else how many calls with this peer the group has
  int in_group = 0;  // which of them it is
};
std::string describe(const Call& call);

struct Member {
  bool is_here;
  int version;
  int ranks;  // that it thinks there are
  int process;
  int device;
};

struct Split {
  int callers;
  std::array<int, kMostRanks> color;
  std::array<int, kMostRanks> key;
};

/// Bytes on their way from one rank to another.
struct Channel {
  uint64_t written;
  uint64_t read;
  std::array<char, kChannel> bytes;
};

/// What the ranks of one communicator share: a file that each has mapped. Guarded by `mutex`, but
/// for the bytes of channels and pieces, which have one writer and one reader.
struct Shared {
  pthread_mutex_t mutex;
  std::atomic<uint32_t> turn;  // changes whenever anything has
  int joined;
  std::array<char, 1024> error;
  std::array<Member, kMostRanks> members;
  std::array<Split, kSplits> splits;
  uint64_t arrivals;                                             // at the meetings of collectives
  std::array<std::array<int64_t, kMostRanks>, kMostRanks> made;  // [of][with]: calls so far
};

/// A mapped file.
class Room {
 public:
  /// The file of this name, which the first rank makes.
  Room(const std::string& name, int ranks);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  class Lock {
   public:
    explicit Lock(Room& room);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Room& room_;
  };

  [[nodiscard]] Shared& shared() { return *shared_; }
  [[nodiscard]] Channel& channel(int from, int to) { return channels_[from * ranks_ + to]; }
  [[nodiscard]] char* piece(int rank) { return pieces_ + static_cast<size_t>(rank) * kPiece; }
  [[nodiscard]] Call& call(int of, int with, int64_t number);
  [[nodiscard]] const std::string& name() const { return name_; }

  /// The first error of any rank; the others wait no longer. Locks.
  void fail(const std::string& error);
  [[nodiscard]] std::string error();
  /// Wakes all who wait.
  void changed();
  /// Until `reached()`, which is called with the lock; false: `stopped()`, or somebody has failed.
  bool wait(const std::function<bool()>& reached, const std::function<bool()>& stopped);
  /// Nobody can come any more. The last to call it leaves nothing on the machine.
  void unlink() const;

 private:
  std::string name_;
  int ranks_;
  size_t bytes_;
  Shared* shared_;
  Call* calls_;
  Channel* channels_;
  char* pieces_;
};

}  // namespace rannc::standin_nccl
