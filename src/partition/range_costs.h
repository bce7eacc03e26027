#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "partition/block_costs.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// What a range of blocks costs, each figure in O(1). Works on a profile whose nodes are the blocks
/// in their linear order (see contract.h), and their costs. A range is [first, last), never empty.
///
/// Tables take O(N^2) space for N blocks, and each row count O(N log N) more, made at first use.
/// Several threads may ask.
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
  /// Sums over the range at one row count.
  struct Work {
    double forward_ns = 0, backward_ns = 0, saved_bytes = 0, workspace_bytes = 0;
  };

  /// The figures at one row count.
  class Table {
   public:
    explicit Table(const BlockCosts::AtRows& costs);
    Work work(int first, int last) const;
    /// Forward and backward; never falls when the range grows.
    double compute_ns(int first, int last) const {
      const auto i = static_cast<size_t>(first), j = static_cast<size_t>(last);
      return forward_[j] - forward_[i] + (backward_[j] - backward_[i]);
    }

   private:
    std::vector<double> forward_, backward_, saved_;  // prefix sums
    std::vector<std::vector<double>> workspace_;      // [k][i]: largest of [i, i + 2^k)
  };

  RangeCosts(const cost::GraphProfile& blocks, const Request& request, const BlockCosts& costs);

  int blocks() const { return blocks_; }
  const Table& at_rows(int64_t rows) const;

  const Parameters& parameters(int first, int last) const { return parameters_[at(first, last)]; }
  const Border& border(int first, int last) const { return borders_[at(first, last)]; }

 private:
  size_t at(int first, int last) const {
    return static_cast<size_t>(first) * static_cast<size_t>(blocks_) +
           static_cast<size_t>(last - 1);
  }
  void fill_parameters(const cost::GraphProfile& blocks, const Request& request);
  void fill_borders(const cost::GraphProfile& blocks);

  int blocks_;
  const BlockCosts& costs_;
  std::vector<Parameters> parameters_;
  std::vector<Border> borders_;
  mutable std::mutex mutex_;  // guards tables_
  mutable std::map<int64_t, std::unique_ptr<Table>> tables_;
};

}  // namespace rannc::partition
