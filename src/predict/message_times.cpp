#include "predict/message_times.h"

#include <algorithm>
#include <span>

#include "rannc/plan/ahead.h"
#include "rannc/plan/simulate.h"

namespace rannc::predict {
namespace {

/// How late a rank may be, as a share of the mean time of a computation: ranks that should be ready
/// at the same moment are not, and what is sent to them waits in memory.
/// tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn`, memory predicted against
/// measured: within 1.6 % (docs/speed.md).
/// without it: the memory of the heavy head's limited plan was predicted 10 % too low.
constexpr double kLate = 0.5;

using plan::Action;
using plan::ActionKind;

plan::Durations durations(const plan::Program& program, const cost::GraphProfile& profile,
                          const std::vector<StageMemory>& stages) {
  const size_t count = stages.size();
  plan::Durations times{.forward_ns = std::vector<double>(count),
                        .backward_ns = std::vector<double>(count),
                        .transfer_ns = {count, std::vector<double>(count)},
                        .transfer_back_ns = {},
                        .reduce_ns = std::vector<double>(program.reductions.size())};
  for (size_t stage = 0; stage < count; ++stage) {
    const auto rows = static_cast<double>(program.shares[stage].front().front().size());
    double issued_ns[] = {0, 0};  // by the host
    double again_ns[] = {0, 0};   // by the device and by the host
    for (size_t place = 0; place < stages[stage].nodes.size(); ++place) {
      const cost::ProfileNode& costs = profile.nodes[stages[stage].nodes[place]];
      if (stages[stage].segment_of[place] != StageMemory::kKept) {
        again_ns[0] += cost::cost_at(costs.forward_ns, profile.rows, rows);
        again_ns[1] += cost::optional_cost_at(costs.forward_host_ns, profile.rows, rows);
      }
      times.forward_ns[stage] += cost::cost_at(costs.forward_ns, profile.rows, rows);
      times.backward_ns[stage] += cost::cost_at(costs.backward_ns, profile.rows, rows);
      issued_ns[0] += cost::optional_cost_at(costs.forward_host_ns, profile.rows, rows);
      issued_ns[1] += cost::optional_cost_at(costs.backward_host_ns, profile.rows, rows);
    }
    times.forward_ns[stage] = std::max(times.forward_ns[stage], issued_ns[0]);
    times.backward_ns[stage] = std::max(times.backward_ns[stage], issued_ns[1]);
    times.backward_ns[stage] += std::max(again_ns[0], again_ns[1]);
  }
  return times;
}

}  // namespace

MessageTimes message_times(const plan::Program& program, const cost::GraphProfile& profile,
                           const std::vector<StageMemory>& stages) {
  MessageTimes times;
  for (auto& posted : times.posted_ns) posted.assign(program.transfers.size(), 0);
  for (const std::vector<Action>& actions : program.actions) {
    times.begin_ns.emplace_back(actions.size(), -1);
  }
  const plan::Simulation simulation = plan::simulate(program, durations(program, profile, stages));
  std::vector<std::vector<double>> ends_ns = times.begin_ns;
  double computed_ns = 0;
  for (const plan::Span& span : simulation.spans) {
    const auto rank = static_cast<size_t>(span.rank), action = static_cast<size_t>(span.action);
    times.begin_ns[rank][action] = span.begin_ns;
    ends_ns[rank][action] = span.end_ns;
    computed_ns += span.end_ns - span.begin_ns;
  }
  const double late_ns = kLate * computed_ns / static_cast<double>(simulation.spans.size());
  for (size_t rank = 0; rank < program.actions.size(); ++rank) {
    const std::vector<Action>& actions = program.actions[rank];
    std::vector<double>& begin_ns = times.begin_ns[rank];
    const std::vector<double>& end_ns = ends_ns[rank];
    double before = 0;  // what has no span follows what is before it
    for (size_t at = 0; at < actions.size(); ++at) {
      begin_ns[at] = std::max(begin_ns[at], before);
      before = std::max(end_ns[at], begin_ns[at]);
    }
    const auto user = std::ranges::find(actions, ActionKind::return_outputs, &Action::kind);
    const auto split = static_cast<size_t>(user - actions.begin());
    const std::span<const Action> all(actions);
    for (const std::span<const Action> phase : {all.first(split), all.subspan(split)}) {
      plan::PostedAhead posted(phase);
      for (size_t i = 0; i < phase.size(); ++i) {
        const auto at = static_cast<size_t>(&phase[i] - actions.data());
        const double now = at == 0 ? 0 : std::max(end_ns[at - 1], begin_ns[at - 1]) + late_ns;
        posted.before(i, [&](const Action& receive) {
          times.posted_ns[static_cast<size_t>(receive.direction)]
                         [static_cast<size_t>(receive.index)] = now;
        });
      }
    }
  }
  return times;
}

}  // namespace rannc::predict
