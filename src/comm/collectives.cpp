#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/members.h"
#include "rannc/comm/communicator.h"

namespace rannc::comm {
namespace {

/// Ranks that gather in one round, each sending to all others: a message costs less than another
/// round of them, as ranks that wait look for news only so often.
/// tuned by: gathers by threads of a process on two busy cores: 64 KiB of 8 ranks take 0.9 ms in
/// one round and 8 ms in others, 8 bytes 0.38 and 0.47 ms. The number is a bound on messages at a
/// time. without it: among few ranks a gather takes as many rounds as there are ranks; among many,
/// one round is ranks squared messages.
constexpr size_t kMostInOneRound = 8;

void wait_all(const std::vector<Handle>& handles) {
  for (const Handle& handle : handles) handle->wait();
}

/// Binomial tree: rank v (counted from the root) receives from v without its highest bit, and
/// sends to v + 2^k for every larger power.
void broadcast_tree(Communicator& comm, void* data, int64_t bytes, size_t root, size_t me,
                    std::span<const int> ranks, int64_t tag, Purpose purpose) {
  const size_t size = ranks.size();
  const size_t v = (me + size - root) % size;
  const auto rank_of = [&](size_t from_root) { return ranks[(from_root + root) % size]; };
  if (v != 0) {
    comm.receive(data, bytes, rank_of(v - std::bit_floor(v)), tag, purpose)->wait();
  }
  std::vector<Handle> sends;
  for (size_t step = v == 0 ? 1 : 2 * std::bit_floor(v); v + step < size; step *= 2) {
    sends.push_back(comm.send(data, bytes, rank_of(v + step), tag, purpose));
  }
  wait_all(sends);
}

size_t index_of_root(int root, std::span<const int> ranks) {
  const auto found = std::ranges::find(ranks, root);
  RANNC_CHECK(found != ranks.end(), "the root of a broadcast, rank " + std::to_string(root) +
                                        ", is not one of its ranks");
  return static_cast<size_t>(found - ranks.begin());
}

}  // namespace

std::vector<std::string> all_gather(Communicator& comm, const std::string& bytes,
                                    std::span<const int> ranks, Purpose purpose) {
  const size_t me = index_in(comm, ranks);
  std::vector<std::string> result(ranks.size());
  result[me] = bytes;
  if (ranks.size() == 1) return result;

  const int64_t tag = comm.next_collective_tag(ranks, purpose);
  const int64_t my_size = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> sizes(ranks.size());
  std::vector<Handle> handles;
  const auto for_each_other = [&](auto&& post) {
    handles.clear();
    // Starting with the next rank, so that not all send to the first one at once.
    for (size_t step = 1; step < ranks.size(); ++step) post((me + step) % ranks.size());
    wait_all(handles);
  };
  for_each_other([&](size_t i) {
    handles.push_back(comm.receive(&sizes[i], sizeof(int64_t), ranks[i], tag, purpose));
    handles.push_back(comm.send(&my_size, sizeof(int64_t), ranks[i], tag, purpose));
  });
  for_each_other([&](size_t i) {
    result[i].resize(static_cast<size_t>(sizes[i]));
    handles.push_back(comm.receive(result[i].data(), sizes[i], ranks[i], tag, purpose));
    handles.push_back(comm.send(bytes.data(), my_size, ranks[i], tag, purpose));
  });
  return result;
}

void all_gather_into(Communicator& comm, const void* mine, int64_t bytes, void* all,
                     std::span<const int> ranks, Purpose purpose) {
  const int64_t tag = ranks.size() == 1 ? 0 : comm.next_collective_tag(ranks, purpose);
  all_gather_into(comm, mine, bytes, all, ranks, tag, purpose);
}

void all_gather_into(Communicator& comm, const void* mine, int64_t bytes, void* all,
                     std::span<const int> ranks, int64_t tag, Purpose purpose) {
  const size_t me = index_in(comm, ranks);
  const size_t size = ranks.size();
  auto* const pieces = static_cast<char*>(all);
  if (size <= kMostInOneRound) {
    std::vector<Handle> handles;
    for (size_t i = 0; i < size; ++i) {
      char* const place = pieces + static_cast<int64_t>(i) * bytes;
      if (i == me) {
        std::memcpy(place, mine, static_cast<size_t>(bytes));
        continue;
      }
      handles.push_back(comm.receive(place, bytes, ranks[i], tag, purpose));
      handles.push_back(comm.send(mine, bytes, ranks[i], tag, purpose));
    }
    return wait_all(handles);
  }
  std::memcpy(pieces, mine, static_cast<size_t>(bytes));
  // Bruck et al. 1997: before each round a rank holds the pieces of `held` ranks from its own on.
  for (size_t held = 1; held < size; held *= 2) {
    const int64_t moved = static_cast<int64_t>(std::min(held, size - held)) * bytes;
    const int before = ranks[(me + size - held) % size];
    const int after = ranks[(me + held) % size];
    char* const place = pieces + static_cast<int64_t>(held) * bytes;
    const Handle received = comm.receive(place, moved, after, tag, purpose);
    const Handle sent = comm.send(pieces, moved, before, tag, purpose);
    received->wait();
    sent->wait();
  }
  // Piece 0 is this rank's own; put that of the first rank in front.
  std::rotate(pieces, pieces + static_cast<int64_t>(size - me) * bytes,
              pieces + static_cast<int64_t>(size) * bytes);
}

std::string broadcast(Communicator& comm, const std::string& bytes, int root,
                      std::span<const int> ranks, Purpose purpose) {
  const bool is_root = comm.rank() == root;
  int64_t size = static_cast<int64_t>(bytes.size());
  broadcast_into(comm, &size, sizeof(size), root, ranks, purpose);
  std::string result = is_root ? bytes : std::string(static_cast<size_t>(size), '\0');
  broadcast_into(comm, result.data(), size, root, ranks, purpose);
  return result;
}

void broadcast_into(Communicator& comm, void* data, int64_t bytes, int root,
                    std::span<const int> ranks, Purpose purpose) {
  const size_t me = index_in(comm, ranks);
  const size_t root_index = index_of_root(root, ranks);
  if (ranks.size() == 1) return;
  broadcast_tree(comm, data, bytes, root_index, me, ranks, comm.next_collective_tag(ranks, purpose),
                 purpose);
}

void barrier(Communicator& comm, std::span<const int> ranks, Purpose purpose) {
  const size_t me = index_in(comm, ranks);
  if (ranks.size() == 1) return;
  const int64_t tag = comm.next_collective_tag(ranks, purpose);
  // Dissemination: after round k a rank has heard, directly or not, of the 2^k ranks before it.
  for (size_t step = 1; step < ranks.size(); step *= 2) {
    const int next = ranks[(me + step) % ranks.size()];
    const int previous = ranks[(me + ranks.size() - step) % ranks.size()];
    const Handle heard = comm.receive(nullptr, 0, previous, tag, purpose);
    const Handle told = comm.send(nullptr, 0, next, tag, purpose);
    heard->wait();
    told->wait();
  }
}

}  // namespace rannc::comm
