#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rannc/plan/simulate.h"

namespace rannc::plan {
namespace {

Durations unit_times(const Program& program) {
  const size_t stages = program.stage_ranks.size();
  Durations durations;
  durations.forward_ns.assign(stages, 1);
  durations.backward_ns.assign(stages, 1);
  durations.transfer_ns.assign(stages, std::vector<double>(stages, 0));
  durations.reduce_ns.assign(program.reductions.size(), 0);
  return durations;
}

bool shares_ranks(const Program& program) {
  std::vector<int> stages_on(program.actions.size(), 0);
  for (const std::vector<Rank>& ranks : program.stage_ranks) {
    for (Rank rank : ranks) ++stages_on[rank];
  }
  return std::ranges::any_of(stages_on, [](int stages) { return stages > 1; });
}

}  // namespace

std::string timeline(const Program& program) {
  const Simulation simulation = simulate(program, unit_times(program));
  const bool with_stage = shares_ranks(program);
  const auto columns = static_cast<size_t>(std::lround(simulation.end_ns));
  std::vector<std::vector<std::string>> cells(program.actions.size(),
                                              std::vector<std::string>(columns, "."));
  size_t width = 1;
  for (const Span& span : simulation.spans) {
    const Action& action = program.actions[span.rank][static_cast<size_t>(span.action)];
    if (action.kind == ActionKind::reduce_gradients) continue;
    std::string& cell = cells[span.rank][static_cast<size_t>(std::lround(span.begin_ns))];
    cell = fmt::format("{}{}", action.kind == ActionKind::forward ? 'F' : 'B', action.micro_batch);
    if (with_stage) cell += fmt::format(".{}", action.stage);
    width = std::max(width, cell.size());
  }

  std::string text;
  for (const std::vector<std::string>& line : cells) {
    for (size_t column = 0; column < columns; ++column) {
      text += fmt::format("{}{:>{}}", column == 0 ? "" : " ", line[column], width);
    }
    text += '\n';
  }
  return text;
}

}  // namespace rannc::plan
