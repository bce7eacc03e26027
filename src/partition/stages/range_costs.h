#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/down_sets.h"
#include "partition/blocks/moments.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// What a range of blocks costs, each figure in O(1). Works on a profile whose nodes are the blocks
/// in a topological order (see contract.h), and their costs.
///
/// Ranges lie between borders, which are down-sets, the smaller ones first: border 0 is the empty
/// set, the last one has all blocks. In a line, border k has the first k blocks. Otherwise the sets
/// are given, and [first, last) is what `last` has and `first`, inside it, has not. Never empty.
///
/// Tables take O(N^2) space for N borders, and each row count O(N log N) more (O(N^2) for given
/// sets), made at first use. Several threads may ask.
class RangeCosts {
 public:
  /// Does not depend on the rows: section 6 of docs/planner-files.md, distinct parameters.
  struct Parameters {
    double bytes = 0;
    double gradient_bytes = 0;
    double optimizer_bytes = 0;
    double own_gradient_bytes = 0;   ///< of parameters used nowhere else: reduced inside the stage
    double tied_gradient_bytes = 0;  ///< of parameters used outside the range, too
  };
  /// Values at the borders of the range, each once.
  struct Border {
    cost::Size in, in_grad;    ///< made before the range and used in it; those with a gradient
    cost::Size out, out_grad;  ///< made in the range and used after it; those with a gradient
    cost::Size graph_in;       ///< graph inputs used in the range
    bool enters = false, enters_grad = false, leaves = false, leaves_grad = false;
  };
  /// Sums over the range at one row count; of times the larger of the device's and the host's.
  struct Work {
    double forward_ns = 0, backward_ns = 0, saved_bytes = 0, workspace_bytes = 0;
  };

  /// What a range holds in a backward, by section 7 of docs/planner-files.md: exactly, or less.
  /// Where it is asked for the most, exactly, or more.
  using Held = Moments::Stage;
  enum class Figure { least, most };
  class Table;
  /// The ranges from one border, in a line each in O(1) after the one before it.
  class Walk {
   public:
    /// The most is known of lines that follow the file only.
    Walk(const Table& table, int first, Figure figure = Figure::least);
    /// What [first, last) holds, where `last` rises. Zeros for profiles of version 1.
    const Held& to(int last);

   private:
    void extend();
    void extend_most();
    [[nodiscard]] double shared_bytes(size_t block) const;
    const Table& table_;
    int first_, last_;
    Figure figure_;
    Held held_;
    double open_bytes_ = 0;  // gradients of values made so far, and used behind the last block
  };

  /// The figures at one row count.
  class Table {
   public:
    Table(const RangeCosts& ranges, const BlockCosts::AtRows& costs, int64_t rows);
    Work work(int first, int last) const;
    double forward_ns(size_t first, size_t last) const {
      const double device = forward_[last] - forward_[first];
      if (forward_host_.empty()) return device;
      return std::max(device, forward_host_[last] - forward_host_[first]);
    }
    double backward_ns(size_t first, size_t last) const {
      const double device = backward_[last] - backward_[first];
      if (backward_host_.empty()) return device;
      return std::max(device, backward_host_[last] - backward_host_[first]);
    }
    /// Forward and backward; never falls when the range grows.
    double compute_ns(int first, int last) const {
      const auto i = static_cast<size_t>(first), j = static_cast<size_t>(last);
      return forward_ns(i, j) + backward_ns(i, j);
    }

   private:
    friend class Walk;
    void fill_given(const BlockCosts::AtRows& costs);
    void fill_held(int64_t rows);

    const RangeCosts& ranges_;
    std::vector<double> forward_, backward_, saved_;    // [border] sums of its blocks
    std::vector<double> forward_host_, backward_host_;  // ... of the host's times; empty: none
    // In a line [k][i]: largest of [i, i + 2^k); of given sets [0][range].
    std::vector<std::vector<double>> workspace_;
    // By version 2. [block] alone in a stage; [storage that blocks share]; [range] of given sets.
    std::vector<Held> alone_;
    std::vector<double> shared_bytes_, held_saved_;
    std::vector<double> gradient_bytes_;  // in a line, [value] of its gradient
  };

  /// `moments`: of the blocks, of which block `order[k]` is the k-th of the line; null: memory is
  /// by section 6.
  RangeCosts(const cost::GraphProfile& blocks, const Request& request, const BlockCosts& costs,
             const Moments* moments = nullptr, const std::vector<uint32_t>& order = {});

  /// `sets` as down_sets() gives them.
  RangeCosts(const cost::GraphProfile& blocks, const Request& request, const BlockCosts& costs,
             std::vector<BlockSet> sets, const Moments* moments = nullptr);

  int blocks() const { return blocks_; }
  /// The border that has all blocks.
  int end() const { return is_line() ? blocks_ : static_cast<int>(sets_.size()) - 1; }
  bool is_line() const { return sets_.empty(); }
  bool nested(int first, int last) const {
    return is_line() ? first < last : range_of_[cell(first, last)] >= 0;
  }
  /// Blocks of a border.
  int size(int border) const {
    return is_line() ? border : static_cast<int>(sets_[static_cast<size_t>(border)].count());
  }
  std::vector<uint32_t> members(int first, int last) const;

  const Table& at_rows(int64_t rows) const;
  bool by_moments() const { return moments_ != nullptr; }
  /// Whether the nodes of each block lie behind those of the block before it.
  bool follows_file() const { return follows_file_; }

  const Parameters& parameters(int first, int last) const { return parameters_[at(first, last)]; }
  const Border& border(int first, int last) const { return borders_[at(first, last)]; }

 private:
  size_t cell(int first, int last) const {
    return static_cast<size_t>(first) * sets_.size() + static_cast<size_t>(last);
  }
  size_t at(int first, int last) const {
    if (!is_line()) return static_cast<size_t>(range_of_[cell(first, last)]);
    return static_cast<size_t>(first) * static_cast<size_t>(blocks_) +
           static_cast<size_t>(last - 1);
  }
  void number_ranges();
  void fill_given(const cost::GraphProfile& blocks, const Request& request);
  void fill_parameters(const cost::GraphProfile& blocks, const Request& request);
  void fill_borders(const cost::GraphProfile& blocks);
  void find_shared(const std::vector<uint32_t>& order);

  int blocks_;
  const BlockCosts& costs_;
  const Moments* moments_;
  bool follows_file_ = false;
  std::vector<uint32_t> order_;  // as given with `moments_`
  /// In a line, [position]: storages that a block before saves, too, and the last of these.
  struct SharedUse {
    int previous;
    size_t storage;
  };
  std::vector<std::vector<SharedUse>> shared_uses_;
  /// In a line: what a block makes, and others use.
  struct Value {
    cost::Size size;
    bool grad;
    int producer, last_use;
  };
  std::vector<Value> values_;
  std::vector<std::vector<size_t>> made_, read_;  // [position] values
  std::vector<BlockSet> sets_;                    // [border]; empty: a line
  std::vector<int32_t> range_of_;  // [first, last] of given sets: number of the range, -1: none
  std::vector<Parameters> parameters_;
  std::vector<Border> borders_;
  mutable std::mutex mutex_;  // guards tables_
  mutable std::map<int64_t, std::unique_ptr<Table>> tables_;
};

}  // namespace rannc::partition
