#include "room.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace rannc::standin_nccl {
namespace {

constexpr std::array<const char*, 6> kNames = {
    "nothing", "ncclSend", "ncclRecv", "ncclAllReduce", "ncclReduceScatter", "ncclAllGather"};
constexpr uint32_t kReady = 1;  // the file has its mutex

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A death of another rank is noticed at the latest then.
constexpr timespec kLookAgain{.tv_sec = 0, .tv_nsec = 20'000'000};

}  // namespace

std::string describe(const Call& call) {
  std::string text = std::string(kNames.at(static_cast<size_t>(call.kind))) + "(" +
                     std::to_string(call.count) + " of type " + std::to_string(call.type) +
                     ", communicator " + std::to_string(call.communicator);
  if (call.group > 0) {
    text += ", in a group as " + std::to_string(call.in_group + 1) + " of " +
            std::to_string(call.group) + " with this rank";
  }
  return text + ")";
}

Room::Room(const std::string& name, int ranks) : name_(name), ranks_(ranks) {
  const auto pairs = static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
  const size_t calls = padded(sizeof(Shared)) + 64;  // the first line says whether it is ready
  const size_t channels = calls + padded(pairs * kCallsAhead * sizeof(Call));
  const size_t pieces = channels + padded(pairs * sizeof(Channel));
  bytes_ = pieces + static_cast<size_t>(ranks) * kPiece;
  bool first = true;
  int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 && errno == EEXIST) {
    first = false;
    file = shm_open(name.c_str(), O_RDWR, 0600);
  }
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
    throw std::runtime_error("cannot make " + name + ": " + std::strerror(errno));
  }
  void* const all = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (all == MAP_FAILED) throw std::runtime_error("cannot map " + name);
  auto* const base = static_cast<char*>(all);
  auto& ready = *reinterpret_cast<std::atomic<uint32_t>*>(base);
  shared_ = reinterpret_cast<Shared*>(base + 64);
  calls_ = reinterpret_cast<Call*>(base + calls);
  channels_ = reinterpret_cast<Channel*>(base + channels);
  pieces_ = base + pieces;
  if (first) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared_->mutex, &attributes);
    ready = kReady;
  }
  while (ready != kReady) usleep(100);
}

Room::~Room() { munmap(reinterpret_cast<char*>(shared_) - 64, bytes_); }

Room::Lock::Lock(Room& room) : room_(room) {
  if (pthread_mutex_lock(&room_.shared().mutex) == EOWNERDEAD) {
    pthread_mutex_consistent(&room_.shared().mutex);  // a rank died; what it wrote is whole
  }
}
Room::Lock::~Lock() { pthread_mutex_unlock(&room_.shared().mutex); }

Call& Room::call(int of, int with, int64_t number) {
  const auto pair = static_cast<size_t>(of * ranks_ + with);
  return calls_[pair * kCallsAhead + static_cast<size_t>(number) % kCallsAhead];
}

void Room::fail(const std::string& error) {
  {
    const Lock lock(*this);
    if (shared_->error[0] == '\0') {
      std::strncpy(shared_->error.data(), error.c_str(), shared_->error.size() - 1);
    }
  }
  changed();
}

std::string Room::error() {
  const Lock lock(*this);
  return shared_->error.data();
}

void Room::changed() {
  ++shared_->turn;
  syscall(SYS_futex, &shared_->turn, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool Room::wait(const std::function<bool()>& reached, const std::function<bool()>& stopped) {
  while (true) {
    const uint32_t seen = shared_->turn;
    {
      const Lock lock(*this);
      if (reached()) return true;
      if (shared_->error[0] != '\0') return false;
    }
    if (stopped()) return false;
    syscall(SYS_futex, &shared_->turn, FUTEX_WAIT, seen, &kLookAgain, nullptr, 0);
  }
}

void Room::unlink() const { shm_unlink(name_.c_str()); }

}  // namespace rannc::standin_nccl
