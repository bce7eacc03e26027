#pragma once

#include <string>
#include <vector>

#include "partition/search.h"
#include "rannc/partition/evaluate.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// An arrangement with its verdict.
struct Judged {
  Arrangement arrangement;
  Evaluation evaluation;  ///< of the plan over blocks
};

struct SearchStory {
  size_t nodes = 0, pieces = 0, blocks = 0;
  bool depth_first = false;
  double closed_form_ns = 0;
  int64_t states = 0;
};

/// The plan's notes, a JSON object: what was searched, and the best arrangement of each other
/// number of stages and schedule, with its time and why it lost. `judged` is sorted, the winner
/// first.
[[nodiscard]] std::string make_notes(const SearchStory& story, const std::vector<Judged>& judged,
                                     bool all_runners_up);

}  // namespace rannc::partition
