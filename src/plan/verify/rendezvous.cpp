#include "plan/verify/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "plan/show/show_order.h"
#include "plan/verify/program_checks.h"

namespace rannc::plan {
namespace {

constexpr int kNoStep = -1;

/// The first node that reads a parameter: its backward is the last that adds to the gradient.
std::map<ir::ValueId, int> last_in_backward(const Program& program, const ir::Graph& graph) {
  std::map<ir::ValueId, int> last;
  for (const Reduction& reduction : program.reductions) {
    for (ir::ValueId parameter : reduction.parameters) last[parameter] = 0;
  }
  std::map<ir::ValueId, bool> met;
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    for (ir::ValueId operand : graph.operands({node})) {
      const auto found = last.find(operand);
      if (found == last.end() || met[operand]) continue;
      met[operand] = true;
      found->second = static_cast<int>(node);
    }
  }
  return last;
}

std::string where(const Action& action) {
  return fmt::format("the {} of stage {}, micro-batch {}",
                     action.kind == ActionKind::forward ? "forward" : "backward", action.stage,
                     action.micro_batch);
}

}  // namespace

/// Writes the sequence of one rank after the other.
class Rendezvous::Builder {
 public:
  Builder(Rendezvous& made, const ir::Graph& graph)
      : made_(made), program_(made.program_), last_node_(last_in_backward(made.program_, graph)) {
    std::map<std::tuple<Direction, int>, std::map<int, int>> by_node;
    for (int place = 0; place < static_cast<int>(program_.order.size()); ++place) {
      const Communication& one = program_.order[place];
      if (one.kind == CommunicationKind::statistics) {
        by_node[{one.direction, one.index}][one.part] = place;
      }
    }
    for (const auto& [pass, places] : by_node) {
      std::vector<std::pair<int, int>>& gathers = gathers_[pass];
      gathers.assign(places.begin(), places.end());
      if (std::get<0>(pass) == Direction::backward) std::ranges::reverse(gathers);
    }
  }

  void build(Rank rank) {
    Sequence& sequence = made_.ranks_.emplace_back();
    computations_.clear();
    last_of_.clear();
    return_ = kNoStep;
    const std::vector<Action>& actions = program_.actions[rank];
    const std::vector<Issue>& issues = program_.issues[rank];
    size_t next = 0;
    const auto issued = [&](size_t action, bool inside) {
      return next < issues.size() && static_cast<size_t>(issues[next].action) == action &&
             issues[next].inside == inside;
    };
    for (size_t action = 0; action <= actions.size(); ++action) {
      while (issued(action, false)) sequence.steps.push_back(issues[next++].place);
      if (action == actions.size()) break;
      switch (actions[action].kind) {
        case ActionKind::forward:
        case ActionKind::backward: {
          const Computation& computation = begin(sequence, actions[action]);
          int begun = 1;
          const auto go_on = [&](int parts) {
            while (begun < parts) sequence.steps.push_back(computation.first + begun++);
          };
          while (issued(action, true)) {
            const int place = issues[next++].place;
            sequence.steps.push_back(place);
            go_on(gather_of(actions[action], place) + 2);  // nothing for what is none of its own
          }
          go_on(computation.parts);
          break;
        }
        case ActionKind::return_outputs:
          return_ = new_step("the return of the outputs");
          sequence.steps.push_back(return_);
          sequence.returned_at = sequence.steps.size();
          break;
        default:
          break;
      }
    }
    if (return_ == kNoStep) sequence.returned_at = sequence.steps.size();
    for (const Issue& issue : issues) add_needs(sequence, rank, issue.place);
  }

 private:
  using Gathers = std::vector<std::pair<int, int>>;  // node and place in the order

  int new_step(std::string name) {
    made_.names_.push_back(std::move(name));
    return static_cast<int>(program_.order.size() + made_.names_.size()) - 1;
  }

  static Direction pass_of(const Action& action) {
    return action.kind == ActionKind::forward ? Direction::forward : Direction::backward;
  }

  [[nodiscard]] const Gathers& gathers(Direction direction, int stage) const {
    static const Gathers none;
    const auto found = gathers_.find({direction, stage});
    return found == gathers_.end() ? none : found->second;
  }

  /// Which of the computation's gathers it is; -1: none.
  [[nodiscard]] int gather_of(const Action& action, int place) const {
    const Gathers& all = gathers(pass_of(action), action.stage);
    const auto found = std::ranges::find(all, place, &std::pair<int, int>::second);
    return found == all.end() ? -1 : static_cast<int>(found - all.begin());
  }

  const Computation& begin(Sequence& sequence, const Action& action) {
    const Direction direction = pass_of(action);
    Computation computation{.first = kNoStep, .position = sequence.steps.size()};
    computation.parts = static_cast<int>(gathers(direction, action.stage).size()) + 1;
    for (int part = 0; part < computation.parts; ++part) {
      const int step = new_step(where(action));
      if (part == 0) computation.first = step;
    }
    sequence.steps.push_back(computation.first);
    for (int part = 0; part + 1 < computation.parts; ++part) {
      const int gather = gathers(direction, action.stage)[part].second;
      sequence.needs.push_back({computation.first + part, gather});
      sequence.needs.push_back({gather, computation.first + part + 1});
    }
    last_of_[{direction, action.stage}] = computation;
    last_of_[{direction, kUser}] = computation;
    return computations_[{direction, action.stage, action.micro_batch}] = computation;
  }

  static int end_of(const Computation& computation) {
    return computation.first + computation.parts - 1;
  }

  void add_needs(Sequence& sequence, Rank rank, int place) const {
    const Communication& one = program_.order[place];
    const auto after_all = [&](int stage) {
      const auto found = last_of_.find({Direction::forward, stage});
      if (found != last_of_.end()) sequence.needs.push_back({end_of(found->second), place});
      if (return_ != kNoStep) sequence.needs.push_back({place, return_});
    };
    switch (one.kind) {
      case CommunicationKind::transfer:
        return add_transfer(sequence, rank, place);
      case CommunicationKind::statistics:
        return;  // with the computations
      case CommunicationKind::buffers:
        return after_all(one.index);
      case CommunicationKind::outputs:
        return after_all(kUser);
      case CommunicationKind::bucket:
        return add_bucket(sequence, place);
    }
  }

  void add_transfer(Sequence& sequence, Rank rank, int place) const {
    const Direction direction = program_.order[place].direction;
    const bool forward = direction == Direction::forward;
    const Transfer& transfer = program_.transfers[program_.order[place].index];
    const int from_stage = forward ? transfer.from_stage : transfer.to_stage;
    const int to_stage = forward ? transfer.to_stage : transfer.from_stage;
    const auto computation = [&](int stage) -> const Computation& {
      return computations_.at({direction, stage, transfer.micro_batch});
    };
    if (rank == (forward ? transfer.from : transfer.to)) {
      if (from_stage != kUser) {
        sequence.needs.push_back({end_of(computation(from_stage)), place});
      } else if (!forward && return_ != kNoStep) {
        sequence.needs.push_back({return_, place});
      }
    }
    if (rank == (forward ? transfer.to : transfer.from)) {
      if (to_stage != kUser) {
        sequence.needs.push_back({place, computation(to_stage).first});
      } else if (forward && return_ != kNoStep) {
        sequence.needs.push_back({place, return_});
      }
    }
  }

  void add_bucket(Sequence& sequence, int place) const {
    const Communication& one = program_.order[place];
    const Reduction& reduction = program_.reductions[one.index];
    const Computation* last = nullptr;
    int last_stage = kUser;
    for (int stage : reduction.stages) {
      const auto found = last_of_.find({Direction::backward, stage});
      if (found == last_of_.end()) continue;
      if (last != nullptr && found->second.position < last->position) continue;
      last = &found->second;
      last_stage = stage;
    }
    if (last == nullptr) return;  // a rank that only holds the parameters
    int node = std::numeric_limits<int>::max();
    for (size_t parameter : program_.buckets[one.index][one.part].parameters) {
      node = std::min(node, last_node_.at(reduction.parameters[parameter]));
    }
    int part = 0;
    for (const auto& [gathering, gather] : gathers(Direction::backward, last_stage)) {
      part += static_cast<int>(gathering >= node);
    }
    sequence.needs.push_back({last->first + part, place});
  }

  Rendezvous& made_;
  const Program& program_;
  std::map<ir::ValueId, int> last_node_;
  std::map<std::tuple<Direction, int>, Gathers> gathers_;
  // These are of the rank at hand.
  std::map<std::tuple<Direction, int, int>, Computation> computations_;
  std::map<std::tuple<Direction, int>, Computation> last_of_;  // kUser: of any stage
  int return_ = kNoStep;
};

Rendezvous::Rendezvous(const Program& program, const ir::Graph& graph) : program_(program) {
  Builder builder(*this, graph);
  for (Rank rank = 0; rank < program.ranks(); ++rank) builder.build(rank);
}

std::string Rendezvous::name_of(int step) const {
  if (!is_communication(step)) return names_[static_cast<size_t>(step) - program_.order.size()];
  return fmt::format("place {} of the order ({})", step, describe(program_, program_.order[step]));
}

std::string Rendezvous::misplaced(Rank rank, const Need& need) const {
  return fmt::format("rank {} comes to {} before {}", rank, name_of(need.after),
                     name_of(need.before));
}

/// Takes away what waits for nothing, until nothing is left or all that is left waits in a circle
/// (Kahn 1962).
class Rendezvous::Game {
 public:
  Game(const Rendezvous& rendezvous, Extent extent, Blocking blocking)
      : rendezvous_(rendezvous), program_(rendezvous.program_), extent_(extent) {
    const size_t steps = program_.order.size() + rendezvous.names_.size();
    waits_for_.assign(steps, 0);
    ranks_there_.assign(program_.order.size(), 0);
    position_.assign(steps, kAbsent);
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      add_rank(rank, blocking);
    }
  }

  [[nodiscard]] std::string play() {
    if (!misplaced_.empty()) return misplaced_;
    for (size_t place = 0; place < ranks_there_.size(); ++place) {
      // Some rank never comes.
      const size_t expected = ranks_of(program_, program_.order[place]).size();
      if (ranks_there_[place] > 0 && ranks_there_[place] < expected) ++waits_for_[place];
    }
    std::vector<size_t> first(waits_for_.size() + 1, 0);
    for (const Need& edge : edges_) ++first[static_cast<size_t>(edge.before) + 1];
    for (size_t step = 1; step < first.size(); ++step) first[step] += first[step - 1];
    std::vector<int> followers(edges_.size());
    std::vector<size_t> next(first.begin(), first.end() - 1);
    for (const Need& edge : edges_) {
      followers[next[static_cast<size_t>(edge.before)]++] = edge.after;
    }
    std::vector<int> free;
    ended_.assign(waits_for_.size(), false);
    for (size_t step = 0; step < waits_for_.size(); ++step) {
      if (waits_for_[step] == 0) free.push_back(static_cast<int>(step));
    }
    while (!free.empty()) {
      const auto step = static_cast<size_t>(free.back());
      free.pop_back();
      ended_[step] = true;
      for (size_t at = first[step]; at < first[step + 1]; ++at) {
        if (--waits_for_[static_cast<size_t>(followers[at])] == 0) free.push_back(followers[at]);
      }
    }
    return what_is_left();
  }

 private:
  static constexpr size_t kAbsent = std::numeric_limits<size_t>::max();

  [[nodiscard]] bool runs(int step) const {
    return extent_ != Extent::without_sums || !rendezvous_.is_communication(step) ||
           program_.order[step].kind != CommunicationKind::bucket;
  }

  [[nodiscard]] size_t length(const Sequence& sequence) const {
    return extent_ == Extent::forward_only ? sequence.returned_at : sequence.steps.size();
  }

  void wait(int after, int before) {
    edges_.push_back({before, after});
    ++waits_for_[static_cast<size_t>(after)];
  }

  void add_rank(Rank rank, Blocking blocking) {
    const Sequence& sequence = rendezvous_.ranks_[rank];
    std::array<int, 4> last{kNoStep, kNoStep, kNoStep, kNoStep};  // by stream
    for (size_t at = 0; at < length(sequence); ++at) {
      const int step = sequence.steps[at];
      if (!runs(step)) continue;
      position_[static_cast<size_t>(step)] = at;
      if (rendezvous_.is_communication(step)) ++ranks_there_[static_cast<size_t>(step)];
      int& before = last[blocking == Blocking::everything ? 0 : stream_of(step)];
      if (before != kNoStep) wait(step, before);
      before = step;
    }
    for (const Need& need : sequence.needs) {
      const size_t before = position_[static_cast<size_t>(need.before)];
      const size_t after = position_[static_cast<size_t>(need.after)];
      if (after == kAbsent) continue;
      // What has not begun yet, nothing can wait for.
      if (before == kAbsent || before > after) {
        if (misplaced_.empty()) misplaced_ = rendezvous_.misplaced(rank, need);
      } else if (blocking == Blocking::stream) {
        wait(need.after, need.before);
      }
    }
    for (int step : sequence.steps) position_[static_cast<size_t>(step)] = kAbsent;
  }

  [[nodiscard]] size_t stream_of(int step) const {
    if (!rendezvous_.is_communication(step)) return 0;  // computations
    const Communication& one = program_.order[step];
    if (one.kind != CommunicationKind::transfer) return 3;
    return one.direction == Direction::forward ? 1 : 2;
  }

  [[nodiscard]] std::string what_is_left() const {
    constexpr int kShown = 8;
    std::string text;
    int waiting = 0;
    for (Rank rank = 0; rank < program_.ranks(); ++rank) {
      const Sequence& sequence = rendezvous_.ranks_[rank];
      for (size_t at = 0; at < length(sequence); ++at) {
        const int step = sequence.steps[at];
        if (!runs(step) || ended_[static_cast<size_t>(step)]) continue;
        if (++waiting <= kShown) {
          text += fmt::format("\n  rank {} waits in {}", rank, rendezvous_.name_of(step));
        }
        break;
      }
    }
    if (waiting > kShown) text += fmt::format("\n  and {} more ranks wait", waiting - kShown);
    return text;
  }

  const Rendezvous& rendezvous_;
  const Program& program_;
  Extent extent_;
  std::vector<Need> edges_;
  std::vector<int> waits_for_;       // [step] how many others
  std::vector<size_t> ranks_there_;  // [communication]
  std::vector<size_t> position_;     // [step] on the rank at hand
  std::vector<bool> ended_;          // [step]
  std::string misplaced_;
};

std::string Rendezvous::why_blocked(Extent extent, Blocking blocking) const {
  return Game(*this, extent, blocking).play();
}

void check_rendezvous(const Program& program, const ir::Graph& graph) {
  const Rendezvous rendezvous(program, graph);
  for (const auto& [extent, what] :
       {std::pair(Extent::whole, "it"),
        {Extent::forward_only, "its forward"},
        {Extent::without_sums, "it, without its sums of gradients,"}}) {
    for (const auto& [blocking, how] :
         {std::pair(Blocking::everything, "everything"), {Blocking::stream, "its stream"}}) {
      const std::string why = rendezvous.why_blocked(extent, blocking);
      if (why.empty()) continue;
      fail_program(
          fmt::format("{} does not end where a communication blocks {}: {}", what, how, why));
    }
  }
}

}  // namespace rannc::plan
