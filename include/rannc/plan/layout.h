#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// A part of a tensor: where it begins and how long it is in each dimension.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> size;
  [[nodiscard]] int64_t numel() const;
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

/// The numbers of a tensor that a rank holds, in a flat array: the boxes one behind the other, each
/// row-major; of these numbers [begin, end) only, where there is a range. No boxes: none.
struct Part {
  std::vector<Box> boxes = {};
  std::optional<std::pair<int64_t, int64_t>> range = {};
  [[nodiscard]] int64_t numel() const;
  friend bool operator==(const Part&, const Part&) = default;
  friend auto operator<=>(const Part&, const Part&) = default;
};

/// `count` numbers that lie together in two flat arrays.
struct Run {
  int64_t from = 0;  ///< where they begin in the array of the sender, or in the whole tensor
  int64_t to = 0;    ///< where they begin in the array of the receiver
  int64_t count = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

/// Numbers that a rank answers for; Run::from counts in the tensor, Run::to in the rank's array.
struct Answer {
  Rank rank = 0;
  std::vector<Run> runs;
  friend bool operator==(const Answer&, const Answer&) = default;
};

/// A message from rank to rank, or a copy inside of one.
struct Move {
  Rank from = 0;
  Rank to = 0;
  std::vector<Run> runs;  ///< by place in the tensor
  [[nodiscard]] int64_t numel() const;
  friend bool operator==(const Move&, const Move&) = default;
};

/// The parts of one tensor that ranks hold. Equal parts are kept once, so a tensor that many ranks
/// hold whole costs what it costs on one.
class Layout {
 public:
  struct Holders {
    Part part;
    std::vector<Rank> ranks;
    friend bool operator==(const Holders&, const Holders&) = default;
  };

  /// `tensor` is its name, for errors. Ranks that are not among `holders` hold nothing. Throws
  /// PlanError where a box or a range leaves the tensor, boxes of a rank overlap, or a rank has two
  /// parts.
  Layout(std::string tensor, std::vector<int64_t> shape, std::vector<Holders> holders);
  /// All of the tensor on each of `ranks`.
  [[nodiscard]] static Layout whole(std::string tensor, std::vector<int64_t> shape,
                                    std::vector<Rank> ranks);

  [[nodiscard]] const std::string& tensor() const { return tensor_; }
  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }
  /// By their first ranks; ranks ascend; no empty parts.
  [[nodiscard]] const std::vector<Holders>& parts() const { return parts_; }

  /// Of the tensor, and of the part of a rank.
  [[nodiscard]] int64_t numel() const;
  [[nodiscard]] int64_t numel(Rank rank) const;
  /// The ranks that hold a number, by its place in the row-major tensor, ascending.
  [[nodiscard]] std::vector<Rank> holders(int64_t number) const;

  /// Each number of the tensor once, with the lowest of its ranks; by rank. Throws PlanError naming
  /// the numbers that no rank holds.
  [[nodiscard]] std::vector<Answer> answers() const;

  /// Messages and copies that turn this layout into `to`, by receiver and sender: each number that
  /// a rank shall hold comes to it once, from itself where it holds the number already. Receivers
  /// of the same numbers take turns among the ranks that hold them. With `rank` only what this rank
  /// sends or receives. Throws PlanError naming numbers that are wanted and nobody holds.
  ///
  /// O(n log n) for n runs of the distinct parts, plus the runs of the moves.
  [[nodiscard]] std::vector<Move> moves(const Layout& to, std::optional<Rank> rank = {}) const;

  [[nodiscard]] std::string to_json() const;
  /// Equal shapes, and on each rank equal numbers in equal order, however boxes are cut.
  friend bool operator==(const Layout& a, const Layout& b);

 private:
  std::string tensor_;
  std::vector<int64_t> shape_;
  std::vector<Holders> parts_;
};

}  // namespace rannc::plan
