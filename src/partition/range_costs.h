#pragma once

#include <cstdint>
#include <vector>

#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// What a range of blocks costs, each figure in O(1). Works on a profile whose nodes are the blocks
/// in their linear order (see contract.h). A range is [first, last), never empty.
///
/// Tables take O(N^2) space for N blocks, and each set of rows O(N^2) more, for the workspace.
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

  RangeCosts(const cost::GraphProfile& blocks, const Request& request);

  int blocks() const { return blocks_; }
  /// Position of a row count in profile.rows; checks that it is there.
  int rows_index(int64_t rows) const;

  const Parameters& parameters(int first, int last) const { return parameters_[at(first, last)]; }
  const Border& border(int first, int last) const { return borders_[at(first, last)]; }
  Work work(int rows_index, int first, int last) const;

 private:
  struct PerRows {
    std::vector<double> forward, backward, saved;  // prefix sums
    std::vector<double> workspace;                 // largest of [first, last)
  };

  size_t at(int first, int last) const {
    return static_cast<size_t>(first) * static_cast<size_t>(blocks_) +
           static_cast<size_t>(last - 1);
  }
  void fill_parameters(const cost::GraphProfile& blocks, const Request& request);
  void fill_borders(const cost::GraphProfile& blocks);
  void fill_work(const cost::GraphProfile& blocks);

  int blocks_;
  std::vector<int64_t> rows_;
  std::vector<Parameters> parameters_;
  std::vector<Border> borders_;
  std::vector<PerRows> per_rows_;
};

}  // namespace rannc::partition
