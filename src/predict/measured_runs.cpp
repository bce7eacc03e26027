#include "rannc/predict/measured_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::predict {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Direction;
using plan::Rank;

/// Two runs of a plan that holds more than those before it both wait for pages of memory, which its
/// later steps will not: in a run that is longer than this, where that share is known to a percent,
/// it does not count. Shorter ones come often enough.
/// tuned by: a bound: a hundred times the 4 ms in which many kernels count a process's time.
/// without it: where pages are slow, a third of the second run, a plan with more memory never wins.
constexpr double kLongSeconds = 0.5;

/// A receive that is off the processor for longer has waited for its message.
/// tuned by: a safety margin: what need not wait is not off the processor but for a switch, a few
/// us. without it: the time that a message waits for its receiver counts as its time on the way.
constexpr double kWaitedNs = 20'000;

/// Flight time of a message: the link says it.
constexpr double kUnknownFlight = -1;

/// Actions that are expected to take equally long have equal keys: kind, rank, and what tells them
/// from the others of both.
using Key = std::array<int64_t, 7>;
/// A collective, the same for all its ranks: the n-th of its kind and argument on each.
using Meeting = std::tuple<ActionKind, int, int>;
using Runs = std::vector<std::vector<RecordedRun>>;  // [run][rank]

bool computes(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
}

/// Whether all ranks of a set take part in it: nobody goes on before the last has come.
bool is_collective(const Action& action) {
  return action.kind == ActionKind::sync_buffers || action.kind == ActionKind::reduce_outputs ||
         action.kind == ActionKind::reduce_gradients;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// For each rank the first one of its host that runs the same stages, perhaps itself. Of a plan
/// that takes seconds one run counts: were ranks compared by what each did in it, the one that was
/// disturbed would be predicted to be late in every step.
std::vector<Rank> find_twins(const plan::Program& program, const std::vector<RecordedRun>& run) {
  std::map<std::pair<std::string, std::vector<int>>, Rank> first;
  std::vector<Rank> twins;
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    std::vector<int> stages;
    for (int stage = 0; stage < program.stages(); ++stage) {
      if (program.mesh(stage).position_of(rank)) stages.push_back(stage);
    }
    const std::string& host = run[static_cast<size_t>(rank)].host;
    twins.push_back(first.emplace(std::pair(host, stages), rank).first->second);
  }
  return twins;
}

/// What tells the actions of `rank` apart.
std::vector<Key> find_keys(const plan::Program& program, Rank rank, Rank twin) {
  std::vector<Key> keys;
  std::set<std::pair<ActionKind, int>> begun;
  const std::vector<Action>& actions = program.actions[static_cast<size_t>(rank)];
  for (size_t at = 0; at < actions.size(); ++at) {
    const Action& action = actions[at];
    const auto kind = static_cast<int64_t>(action.kind);
    if (computes(action)) {
      const auto stage = static_cast<size_t>(action.stage);
      const auto replica = static_cast<size_t>(*program.mesh(action.stage).replica_of(rank));
      const int64_t rows =
          program.shares[stage][replica][static_cast<size_t>(action.micro_batch)].size();
      // The first backward writes gradients, the others add to them.
      const bool again = begun.contains({action.kind, action.stage});
      keys.push_back({kind, twin, action.stage, rows, again});
      if (rows > 0) begun.emplace(action.kind, action.stage);
    } else if (action.kind == ActionKind::send || action.kind == ActionKind::receive) {
      const plan::Transfer& transfer = program.transfers[static_cast<size_t>(action.index)];
      keys.push_back({kind, rank, transfer.value.index, transfer.from_stage, transfer.to_stage,
                      static_cast<int64_t>(action.direction), transfer.from == transfer.to});
    } else {
      keys.push_back({kind, rank, static_cast<int64_t>(at)});
    }
  }
  return keys;
}

/// Where each action of one rank meets others; those that are no collective have a meeting, too.
std::vector<Meeting> find_meetings(const std::vector<Action>& actions) {
  std::map<std::pair<ActionKind, int>, int> seen;
  std::vector<Meeting> meetings;
  for (const Action& action : actions) {
    const int argument = action.kind == ActionKind::sync_buffers ? action.stage : action.index;
    meetings.emplace_back(action.kind, argument, seen[{action.kind, argument}]++);
  }
  return meetings;
}

/// What remains of a rank's computing without the time for new memory, nearly all of which forward
/// and backward ask for.
double settled_share(const RecordedRun& run) {
  const double computed = run.compute_ns == 0 ? 1 : run.compute_ns;
  return std::max(1 - 1e9 * run.paging_seconds / computed, 0.0);
}

class Summary {
 public:
  Summary(const plan::Program& program, const Runs& runs)
      : program_(program), runs_(runs), twins_(find_twins(program, runs.front())) {
    for (Rank rank = 0; rank < program.ranks(); ++rank) {
      keys_.push_back(find_keys(program, rank, twins_[static_cast<size_t>(rank)]));
      meetings_.push_back(find_meetings(program.actions[static_cast<size_t>(rank)]));
    }
    for (const std::vector<RecordedRun>& run : runs) {
      add_actions(run);
      add_flights(run);
    }
  }

  [[nodiscard]] MeasuredRuns result() const {
    MeasuredRuns result;
    for (size_t rank = 0; rank < keys_.size(); ++rank) {
      std::vector<MeasuredAction>& actions = result.actions.emplace_back();
      for (size_t at = 0; at < keys_[rank].size(); ++at) {
        const auto work = work_ns_.find(keys_[rank][at]);
        actions.push_back({.work_ns = work == work_ns_.end() ? 0 : median(work->second),
                           .wait_ns = wait_ns(rank, at)});
      }
    }
    result.around_ns = of_twins([](const RecordedRun& run) { return run.around_ns; });
    result.compute_ns =
        of_twins([](const RecordedRun& run) { return run.compute_ns * settled_share(run); });
    result.optimizer_ns = of_twins([](const RecordedRun& run) { return run.optimizer_ns; });
    result.optimizer_factor = of_twins([](const RecordedRun& run) { return run.optimizer_factor; });
    return result;
  }

 private:
  [[nodiscard]] const Action& action_of(size_t rank, const RecordedAction& recorded) const {
    return program_.actions[rank].at(recorded.action);
  }

  void add_actions(const std::vector<RecordedRun>& run) {
    std::map<Meeting, double> shortest;  // the wait of the rank that came last
    for (size_t rank = 0; rank < run.size(); ++rank) {
      const double settled = settled_share(run[rank]);
      for (const RecordedAction& recorded : run[rank].actions) {
        const Action& action = action_of(rank, recorded);
        double spent = recorded.cpu_ns;
        if (computes(action)) {
          spent = settled * (run[rank].one_thread ? recorded.cpu_ns : recorded.passed_ns);
        }
        work_ns_[keys_[rank][recorded.action]].push_back(spent);
        if (!is_collective(action)) continue;
        const double wait = recorded.passed_ns - recorded.cpu_ns;
        const auto [found, is_new] = shortest.emplace(meetings_[rank][recorded.action], wait);
        if (!is_new) found->second = std::min(found->second, wait);
      }
    }
    for (const auto& [meeting, wait] : shortest) meeting_ns_[meeting].push_back(wait);
  }

  /// The time until its message was there, of each send for whose message the receiver waited when
  /// it left. Clocks of different hosts cannot be compared, and of a message that left before its
  /// receiver came nobody knows when it was there.
  void add_flights(const std::vector<RecordedRun>& run) {
    struct Sent {
      const std::string* host;
      Key key;
      double ns;
    };
    std::map<std::pair<int, Direction>, Sent> sent;
    for (size_t rank = 0; rank < run.size(); ++rank) {
      for (const RecordedAction& recorded : run[rank].actions) {
        const Action& action = action_of(rank, recorded);
        const Key& key = keys_[rank][recorded.action];
        // One to itself is there at once.
        if (action.kind != ActionKind::send || key.back() != 0) continue;
        sent.insert_or_assign({action.index, action.direction},
                              Sent{&run[rank].host, key, recorded.end_ns});
      }
    }
    for (const RecordedRun& receiver : run) {
      const auto rank = static_cast<size_t>(&receiver - run.data());
      for (const RecordedAction& recorded : receiver.actions) {
        const Action& action = action_of(rank, recorded);
        const auto found = sent.find({action.index, action.direction});
        if (action.kind != ActionKind::receive || found == sent.end()) continue;
        const auto& [host, key, departure_ns] = found->second;
        const bool began_in_time = recorded.end_ns - recorded.passed_ns <= departure_ns;
        const bool waited = recorded.passed_ns - recorded.cpu_ns > kWaitedNs;
        if (*host != receiver.host || !began_in_time || !waited) continue;
        flight_ns_[key].push_back(std::max(recorded.end_ns - recorded.cpu_ns - departure_ns, 0.0));
      }
    }
  }

  [[nodiscard]] double wait_ns(size_t rank, size_t at) const {
    const Action& action = program_.actions[rank][at];
    if (action.kind == ActionKind::send) {
      const auto flights = flight_ns_.find(keys_[rank][at]);
      return flights == flight_ns_.end() ? kUnknownFlight : median(flights->second);
    }
    if (!is_collective(action)) return 0;
    const auto waits = meeting_ns_.find(meetings_[rank][at]);
    RANNC_CHECK(waits != meeting_ns_.end(),
                fmt::format("action {} of rank {} was recorded by none of its ranks", at, rank));
    return median(waits->second);
  }

  /// For each rank the median over all runs of its twins.
  template <class Of>
  [[nodiscard]] std::vector<double> of_twins(Of of) const {
    std::vector<double> result;
    for (const Rank twin : twins_) {
      std::vector<double> values;
      for (const std::vector<RecordedRun>& run : runs_) {
        for (size_t rank = 0; rank < run.size(); ++rank) {
          if (twins_[rank] == twin) values.push_back(of(run[rank]));
        }
      }
      result.push_back(median(std::move(values)));
    }
    return result;
  }

  const plan::Program& program_;
  const Runs& runs_;
  std::vector<Rank> twins_;                            // [rank]
  std::vector<std::vector<Key>> keys_;                 // [rank][action]
  std::vector<std::vector<Meeting>> meetings_;         // [rank][action]
  std::map<Key, std::vector<double>> work_ns_;         // of each time that it was recorded
  std::map<Key, std::vector<double>> flight_ns_;       // of sends
  std::map<Meeting, std::vector<double>> meeting_ns_;  // [run] after the last rank has come
};

}  // namespace

MeasuredRuns summarize(const plan::Program& program, Runs runs) {
  RANNC_CHECK(!runs.empty(), "no run to summarize");
  std::vector<double> seconds, settled;
  for (std::vector<RecordedRun>& run : runs) {
    seconds.push_back(std::ranges::max(run, {}, &RecordedRun::seconds).seconds);
    if (seconds.back() <= kLongSeconds) {  // it is not known well
      for (RecordedRun& rank : run) rank.paging_seconds = 0;
    }
    settled.push_back(seconds.back() -
                      std::ranges::max(run, {}, &RecordedRun::paging_seconds).paging_seconds);
  }
  const double shortest = std::ranges::min(settled);
  if (runs.size() > 1) {
    runs.erase(runs.begin());
    settled.erase(settled.begin());
  }
  MeasuredRuns result = Summary(program, runs).result();
  result.run_ns = 1e9 * median(settled);
  result.shortest_ns = 1e9 * shortest;
  result.all_ns = 1e9 * std::reduce(seconds.begin(), seconds.end());
  return result;
}

}  // namespace rannc::predict
