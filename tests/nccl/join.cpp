#include <unistd.h>

#include <algorithm>
#include <utility>

#include "communicator.h"
#include "faults.h"

using rannc::comm::nccl::Result;

std::string ncclComm::error() {
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) return error_;
  }
  for (const auto& one : {room, root}) {
    if (one) {
      if (std::string text = one->error(); !text.empty()) return text;
    }
  }
  return "";
}

void ncclComm::fail(Result result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) return;
  error_ = text;
  result_ = result;
}

Result ncclComm::failed_with() {
  {
    const std::lock_guard lock(mutex_);
    if (result_ != rannc::comm::nccl::kSuccess) return result_;
  }
  return error().empty() ? rannc::comm::nccl::kSuccess : rannc::comm::nccl::kRemoteError;
}

namespace rannc::standin_nccl {
namespace {

void meet(Comm comm) {
  Shared& shared = comm->room->shared();
  const int number = comm->root_ranks.empty() ? comm->rank : comm->root_ranks[comm->rank];
  const int world = fault("world", number);
  const Member mine{.is_here = true,
                    .version = version_of(number),
                    .ranks = world != 0 ? world : comm->size,
                    .process = getpid(),
                    .device = comm->device->index()};
  std::string wrong;
  {
    const Room::Lock lock(*comm->room);
    for (int rank = 0; rank < comm->size; ++rank) {
      const Member& other = shared.members.at(static_cast<size_t>(rank));
      if (!other.is_here) continue;
      const std::string ranks =
          "rank " + std::to_string(rank) + " and rank " + std::to_string(comm->rank);
      if (rank == comm->rank) {
        wrong = "two processes are rank " + std::to_string(rank);
      } else if (other.version != mine.version) {
        wrong = "Mismatched NCCL version detected: " + ranks + " have " +
                std::to_string(other.version) + " and " + std::to_string(mine.version);
      } else if (other.ranks != mine.ranks) {
        wrong = ranks + " join " + std::to_string(other.ranks) + " and " +
                std::to_string(mine.ranks) + " ranks";
      } else if (other.process == mine.process && other.device == mine.device) {
        wrong =
            "Duplicate GPU detected: " + ranks + " both on device " + std::to_string(mine.device);
      }
    }
    shared.members.at(static_cast<size_t>(comm->rank)) = mine;
    ++shared.joined;
  }
  if (!wrong.empty()) comm->room->fail(wrong);
  comm->room->changed();
  const bool all = comm->room->wait([&] { return shared.joined == comm->size; },
                                    [&] { return comm->is_stopped(); });
  comm->room->unlink();
  if (!all) {
    comm->fail(comm::nccl::kInvalidUsage, comm->room->error());
    auto joining = ncclComm::State::joining;
    comm->state.compare_exchange_strong(joining, ncclComm::State::failed);
    return;
  }
  auto joining = ncclComm::State::joining;
  comm->state.compare_exchange_strong(joining, ncclComm::State::ready);
}

template <class Joining>
void begin(Comm comm, Joining joining) {
  comm->joiner = std::thread(std::move(joining));
  if (comm->blocking) comm->joiner.join();
}

}  // namespace

void join(Comm comm, const std::string& name) {
  comm->room = comm->root = std::make_shared<Room>(name, comm->size);
  comm->met.assign(static_cast<size_t>(comm->size), false);
  for (int rank = 0; rank < comm->size; ++rank) comm->root_ranks.push_back(rank);
  begin(comm, [comm] {
    if (fault("never_joins", comm->rank) != 0) {
      while (!comm->is_stopped()) usleep(1000);
      return;
    }
    meet(comm);
  });
}

void join_split(Comm parent, Comm comm, int color, int key, std::function<void()> ended) {
  const int number = parent->splits++;
  comm->root = parent->root;
  comm->device = parent->device;
  ++parent->splitting;
  comm->split_from = parent;
  begin(comm, [=, ended = std::move(ended)] {
    const auto end = [&] {
      if (comm->state == ncclComm::State::ready) {
        ended();
      } else {
        parent->fail(comm->failed_with(), comm->error());
      }
      comm->split_from = nullptr;
      --parent->splitting;
    };
    Shared& shared = parent->room->shared();
    Split& split = shared.splits.at(static_cast<size_t>(number));
    {
      const Room::Lock lock(*parent->room);
      split.color.at(static_cast<size_t>(parent->rank)) = color;
      split.key.at(static_cast<size_t>(parent->rank)) = key;
      ++split.callers;
    }
    parent->room->changed();
    const bool all = parent->room->wait([&] { return split.callers == parent->size; },
                                        [&] { return comm->is_stopped(); });
    if (!all) {
      comm->fail(comm::nccl::kRemoteError, "ncclCommSplit: not all ranks of the parent came");
      comm->state = ncclComm::State::failed;
      return end();
    }
    std::vector<std::pair<int, int>> members;  // by key, then rank
    for (int rank = 0; rank < parent->size; ++rank) {
      if (split.color[static_cast<size_t>(rank)] == color) {
        members.emplace_back(split.key[static_cast<size_t>(rank)], rank);
      }
    }
    std::sort(members.begin(), members.end());
    for (const auto& [unused, rank] : members) {
      if (rank == parent->rank) comm->rank = static_cast<int>(comm->root_ranks.size());
      comm->root_ranks.push_back(parent->root_ranks[static_cast<size_t>(rank)]);
    }
    comm->size = static_cast<int>(members.size());
    comm->number = (parent->number * kSplits + number + 1) * kMostRanks + color;
    comm->met.assign(members.size(), false);
    comm->room = std::make_shared<Room>(parent->root->name() + "-" + std::to_string(comm->number),
                                        comm->size);
    meet(comm);
    end();
  });
}

}  // namespace rannc::standin_nccl
