#include "partition/message_times.h"

#include <algorithm>
#include <span>

#include "rannc/plan/ahead.h"
#include "rannc/plan/simulate.h"

namespace rannc::partition {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Rank;

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
    for (uint32_t node : stages[stage].nodes) {
      const cost::ProfileNode& costs = profile.nodes[node];
      times.forward_ns[stage] += cost::cost_at(costs.forward_ns, profile.rows, rows);
      times.backward_ns[stage] += cost::cost_at(costs.backward_ns, profile.rows, rows);
    }
    if (stages[stage].recompute) times.backward_ns[stage] += times.forward_ns[stage];
  }
  return times;
}

bool is_computation(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
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
  std::vector<std::vector<double>> end_ns = times.begin_ns;
  for (const plan::Span& span : simulation.spans) {
    times.begin_ns[span.rank][span.action] = span.begin_ns;
    end_ns[span.rank][span.action] = span.end_ns;
  }
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    const std::vector<Action>& actions = program.actions[rank];
    double now = 0;  // what has no span follows what is before
    for (size_t at = 0; at < actions.size(); ++at) {
      double& begin = times.begin_ns[rank][at];
      begin = now = std::max(begin, now);
      now = std::max(end_ns[rank][at], now);
    }
    // As the executor does; a phase posts nothing of the next one.
    size_t posted = 0;
    int ahead = 0;
    for (size_t at = 0; at < actions.size(); ++at) {
      for (; posted < actions.size() && ahead < plan::kComputationsAhead; ++posted) {
        const Action& action = actions[posted];
        if (action.kind == ActionKind::return_outputs && posted > at) break;
        if (action.kind == ActionKind::receive) {
          times.posted_ns[static_cast<size_t>(action.direction)][action.index] =
              at == 0 ? 0 : std::max(end_ns[rank][at - 1], times.begin_ns[rank][at - 1]);
        }
        if (is_computation(action)) ++ahead;
      }
      if (is_computation(actions[at])) --ahead;
    }
  }
  return times;
}

}  // namespace rannc::partition
