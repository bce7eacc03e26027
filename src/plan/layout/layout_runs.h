#pragma once

#include <cstdint>
#include <vector>

#include "rannc/plan/layout.h"

namespace rannc::plan {

/// Appends a run, or lengthens the last one where both arrays go on.
void add_run(std::vector<Run>& runs, Run run);

/// The numbers of a part of a tensor: Run::from in the tensor, Run::to in the part's array. In the
/// order of the array, and by place in the tensor.
[[nodiscard]] std::vector<Run> runs_of(const std::vector<int64_t>& shape, const Part& part);
[[nodiscard]] std::vector<Run> runs_by_place(const std::vector<int64_t>& shape, const Part& part);

/// A tensor cut wherever one of a layout's parts begins or ends: which parts hold what.
class Cover {
 public:
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    size_t set = 0;
  };
  struct Set {
    std::vector<size_t> parts;  ///< ascending; of Layout::parts()
    std::vector<Rank> ranks;    ///< ascending; of all these parts
  };

  explicit Cover(const Layout& layout);

  /// The first segment that ends behind `number`.
  [[nodiscard]] std::vector<Segment>::const_iterator first_behind(int64_t number) const;
  [[nodiscard]] bool holds(size_t set, size_t part) const;
  /// Where the number, which `part` holds, lies in the array of the part.
  [[nodiscard]] int64_t place_in(size_t part, int64_t number) const;

  std::vector<Segment> segments;  ///< ascending; without what nobody holds
  std::vector<Set> sets;

 private:
  std::vector<std::vector<Run>> runs_;  // [part] by place in the tensor
};

}  // namespace rannc::plan
