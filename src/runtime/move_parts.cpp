#include "rannc/runtime/move_parts.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <vector>

#include "rannc/util/error.h"

namespace rannc::runtime {
namespace {

void check(const MovedTensor& tensor, int rank) {
  const auto check_one = [&](const plan::Layout& layout, const at::Tensor& flat, const char* what) {
    const int64_t wanted = layout.numel(rank);
    const int64_t given = flat.defined() ? flat.numel() : 0;
    if (given != wanted || (flat.defined() && !(flat.is_contiguous() && flat.is_cpu()))) {
      throw Error(c10::str("the part of '", layout.tensor(), "' that rank ", rank, " ", what,
                           " has ", wanted, " numbers, but ", given, " lie side by side there"));
    }
  };
  check_one(tensor.from, tensor.held, "holds");
  check_one(tensor.to, tensor.wanted, "wants");
  if (tensor.held.defined() && tensor.wanted.defined() &&
      tensor.held.scalar_type() != tensor.wanted.scalar_type()) {
    throw Error(c10::str("'", tensor.from.tensor(), "' is of ", tensor.held.scalar_type(),
                         " where it is held, and of ", tensor.wanted.scalar_type(),
                         " where it is wanted"));
  }
}

std::byte* bytes_of(const at::Tensor& flat) {
  return static_cast<std::byte*>(flat.defined() ? flat.data_ptr() : nullptr);
}

/// What goes between this rank and another one: pieces of its memory, in the order in which both
/// sides find them.
struct Message {
  struct Piece {
    std::byte* data;
    int64_t bytes;
  };
  std::vector<Piece> pieces;
  std::vector<std::byte> packed;

  [[nodiscard]] int64_t bytes() const {
    return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                           [](int64_t sum, const Piece& piece) { return sum + piece.bytes; });
  }
  /// One piece travels from, or to, where it lies.
  [[nodiscard]] std::byte* memory() {
    if (pieces.size() == 1) return pieces[0].data;
    packed.resize(static_cast<size_t>(bytes()));
    return packed.data();
  }
  void pack() {
    std::byte* place = packed.data();
    for (const Piece& piece : pieces) {
      std::memcpy(place, piece.data, static_cast<size_t>(piece.bytes));
      place += piece.bytes;
    }
  }
  void unpack() const {
    const std::byte* place = packed.data();
    for (const Piece& piece : pieces) {
      std::memcpy(piece.data, place, static_cast<size_t>(piece.bytes));
      place += piece.bytes;
    }
  }
};

class Batch {
 public:
  explicit Batch(int rank) : rank_(rank) {}

  void add(const MovedTensor& tensor) {
    const at::Tensor& any = tensor.held.defined() ? tensor.held : tensor.wanted;
    if (!any.defined()) return;
    const int64_t item = any.element_size();
    for (const plan::Move& move : tensor.from.moves(tensor.to, rank_)) {
      std::byte* const held = bytes_of(tensor.held);
      std::byte* const wanted = bytes_of(tensor.wanted);
      for (const plan::Run& run : move.runs) {
        const int64_t bytes = run.count * item;
        if (move.from == move.to) {
          std::memcpy(wanted + run.to * item, held + run.from * item, static_cast<size_t>(bytes));
        } else if (move.from == rank_) {
          sent_[move.to].pieces.push_back({held + run.from * item, bytes});
        } else {
          received_[move.from].pieces.push_back({wanted + run.to * item, bytes});
        }
      }
    }
  }

  void run(comm::Communicator& comm, int64_t tag, comm::Purpose purpose) {
    std::vector<comm::Handle> handles;
    for (auto& [from, message] : received_) {
      handles.push_back(comm.receive(message.memory(), message.bytes(), from, tag, purpose));
    }
    for (auto& [to, message] : sent_) {
      std::byte* const memory = message.memory();
      if (message.pieces.size() > 1) message.pack();
      handles.push_back(comm.send(memory, message.bytes(), to, tag, purpose));
    }
    for (const comm::Handle& handle : handles) handle->wait();
    for (const auto& [from, message] : received_) {
      if (message.pieces.size() > 1) message.unpack();
    }
  }

 private:
  int rank_;
  std::map<int, Message> sent_;      // by receiver
  std::map<int, Message> received_;  // by sender
};

/// From so many receivers of the same numbers on, each that has them hands them on.
/// tuned by: arithmetic: two receivers of one sender wait for two messages either way. without it:
/// a tensor for all ranks leaves one rank as many times as there are others.
constexpr size_t kMany = 3;

/// Whether it was such a tensor: then its numbers are there.
bool broadcast_if_many_want_it(comm::Communicator& comm, const MovedTensor& tensor,
                               comm::Purpose purpose) {
  if (tensor.from.parts().size() != 1 || tensor.to.parts().size() != 1) return false;
  const plan::Layout::Holders& holders = tensor.from.parts()[0];
  const plan::Layout::Holders& takers = tensor.to.parts()[0];
  std::vector<int> ranks;
  std::ranges::set_difference(takers.ranks, holders.ranks, std::back_inserter(ranks));
  if (holders.part != takers.part || ranks.size() < kMany) return false;

  const int root = holders.ranks[0];
  ranks.insert(std::ranges::lower_bound(ranks, root), root);
  const bool has_it = std::ranges::binary_search(holders.ranks, comm.rank());
  const at::Tensor& data = has_it ? tensor.held : tensor.wanted;
  if (std::ranges::binary_search(ranks, comm.rank())) {
    comm::broadcast_into(comm, data.data_ptr(), static_cast<int64_t>(data.nbytes()), root, ranks,
                         purpose);
  }
  if (has_it && tensor.wanted.defined()) tensor.wanted.copy_(tensor.held);
  return true;
}

}  // namespace

void move_parts(comm::Communicator& comm, std::span<const MovedTensor> tensors,
                std::span<const int> ranks, comm::Purpose purpose) {
  Batch batch(comm.rank());
  for (const MovedTensor& tensor : tensors) {
    check(tensor, comm.rank());
    if (!broadcast_if_many_want_it(comm, tensor, purpose)) batch.add(tensor);
  }
  if (ranks.size() > 1) batch.run(comm, comm.next_collective_tag(ranks, purpose), purpose);
}

}  // namespace rannc::runtime
