#include "rannc/plan/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "plan/show/notes.h"
#include "rannc/plan/module_names.h"
#include "rannc/plan/simulate.h"
#include "rannc/util/json.h"

namespace rannc::plan {
namespace {

/// Processes of what is foretold have numbers behind those of all ranks.
constexpr int kForetold = 1'000'000;

const char* kind_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::send:
      return "send";
    case ActionKind::receive:
      return "receive";
    case ActionKind::sync_buffers:
      return "running statistics";
    case ActionKind::reduce_outputs:
      return "sum of outputs";
    case ActionKind::return_outputs:
      return "outputs to the user";
    case ActionKind::reduce_gradients:
      return "sum of gradients";
    case ActionKind::release:
      return "release";
  }
  return "";
}

bool is_message(const Action& action) {
  return action.kind == ActionKind::send || action.kind == ActionKind::receive;
}

std::string end_of(int stage) {
  return stage == kUser ? "the user" : fmt::format("stage {}", stage);
}

/// What Perfetto writes beside a bar; short, as bars are.
std::string label(const Program& program, const Action& action) {
  if (action.kind == ActionKind::forward || action.kind == ActionKind::backward) {
    return fmt::format("{} {}", kind_of(action), action.micro_batch);
  }
  if (!is_message(action)) return kind_of(action);
  const Transfer& transfer = program.transfers[static_cast<size_t>(action.index)];
  return fmt::format("{} {}", kind_of(action), transfer.micro_batch);
}

/// Microseconds, in which the format counts.
std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

class Events {
 public:
  Events(const Program& program, Rank rank, int64_t step, bool foretold)
      : program_(program), rank_(rank), step_(step), process_(rank + (foretold ? kForetold : 0)) {
    if (step > 0) return;
    std::vector<int> stages;
    for (int stage = 0; stage < program.stages(); ++stage) {
      if (program.mesh(stage).position_of(rank)) stages.push_back(stage);
    }
    const std::string name = fmt::format("rank {} (stage {}){}", rank, number_ranges(stages),
                                         foretold ? ", predicted" : "");
    add(R"("name":"process_name","ph":"M","args":{{"name":{}}})", json::quote(name));
    add(R"("name":"process_sort_index","ph":"M","args":{{"sort_index":{}}})",
        2 * rank + (foretold ? 1 : 0));
    add(R"("name":"thread_name","ph":"M","args":{{"name":"actions"}})");
  }

  void add(const TimedAction& timed) {
    if (timed.action < 0) {
      bar("wait for messages", "send", timed, "");
      return;
    }
    const Action& action =
        program_.actions[static_cast<size_t>(rank_)][static_cast<size_t>(timed.action)];
    if (action.kind == ActionKind::forward) count(timed.begin_ns, 1);
    if (action.kind == ActionKind::release) {
      count(timed.end_ns, -1);
      return;
    }
    bar(label(program_, action), kind_of(action), timed,
        fmt::format(",\"what\":{}", json::quote(in_words(program_, action))));
    if (is_message(action)) arrow(action, timed);
  }

  [[nodiscard]] std::string text() const { return fmt::format("{}", fmt::join(events_, ",\n")); }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    events_.push_back(fmt::format("{{\"pid\":{},\"tid\":0,{}}}", process_,
                                  fmt::format(format, std::forward<Values>(values)...)));
  }

  void bar(const std::string& name, const char* kind, const TimedAction& timed,
           const std::string& more) {
    add(R"("name":{},"cat":"{}","ph":"X","ts":{},"dur":{},"args":{{"step":{}{}}})",
        json::quote(name), kind, us(timed.begin_ns), us(timed.end_ns - timed.begin_ns), step_,
        more);
  }

  void count(int64_t at_ns, int change) {
    held_ += change;
    add(R"("name":"micro-batches held","ph":"C","ts":{},"args":{{"micro-batches":{}}})", us(at_ns),
        std::max(held_, 0));
  }

  /// Both ends lie in the bars of the two actions.
  void arrow(const Action& action, const TimedAction& timed) {
    const Transfer& transfer = program_.transfers[static_cast<size_t>(action.index)];
    if (transfer.from == transfer.to) return;
    const bool begins = action.kind == ActionKind::send;
    add(R"("name":"message","cat":"message","ph":"{}","ts":{},"id":"{}.{}.{}.{}"{})",
        begins ? "s" : "f", us(begins ? timed.begin_ns : timed.end_ns), process_ >= kForetold,
        step_, action.index, action.direction == Direction::forward ? "f" : "b",
        begins ? "" : R"(,"bp":"e")");
  }

  const Program& program_;
  Rank rank_;
  int64_t step_;
  int process_;
  int held_ = 0;
  std::vector<std::string> events_;
};

Durations durations_of(const Plan& plan, const Program& program) {
  const size_t stages = plan.stages.size();
  Durations durations;
  durations.transfer_ns.assign(stages, std::vector<double>(stages, 0));
  durations.transfer_back_ns = durations.transfer_ns;
  for (const Stage& stage : plan.stages) {
    const Prediction predicted = stage.predicted.value_or(Prediction{});
    durations.forward_ns.push_back(static_cast<double>(predicted.forward_ns));
    durations.backward_ns.push_back(static_cast<double>(predicted.backward_ns));
  }
  const auto transfers = read_notes(plan).transfers;
  for (const TransferNote& note : transfers ? *transfers : std::vector<TransferNote>()) {
    const auto from = static_cast<size_t>(note.from), to = static_cast<size_t>(note.to);
    durations.transfer_ns[from][to] = note.forward_ns;
    durations.transfer_back_ns[from][to] = note.backward_ns;
  }
  for (const Reduction& reduction : program.reductions) {
    const auto stage = static_cast<size_t>(reduction.stages.empty() ? 0 : reduction.stages[0]);
    const auto& predicted = plan.stages[stage].predicted;
    const bool own = reduction.stages.size() == 1 && predicted;
    durations.reduce_ns.push_back(own ? static_cast<double>(predicted->reduce_ns) : 0);
  }
  return durations;
}

}  // namespace

std::string in_words(const Program& program, const Action& action) {
  if (is_message(action)) {
    const Transfer& transfer = program.transfers[static_cast<size_t>(action.index)];
    const bool forward = action.direction == Direction::forward;
    const bool sends = action.kind == ActionKind::send;
    const Rank other = forward == sends ? transfer.to : transfer.from;
    return fmt::format("{} {} rank {}: {} of {} to {}, micro-batch {}", kind_of(action),
                       sends ? "to" : "from", other, forward ? "rows" : "gradient",
                       end_of(transfer.from_stage), end_of(transfer.to_stage),
                       transfer.micro_batch);
  }
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::release:
      return fmt::format("{} of stage {}, micro-batch {}", kind_of(action), action.stage,
                         action.micro_batch);
    case ActionKind::sync_buffers:
      return fmt::format("{} of stage {}", kind_of(action), action.stage);
    case ActionKind::reduce_gradients:
      return fmt::format(
          "{} over ranks {}", kind_of(action),
          number_ranges(program.reductions[static_cast<size_t>(action.index)].ranks));
    default:
      return kind_of(action);
  }
}

std::string trace_events(const Program& program, Rank rank, const std::vector<TimedAction>& actions,
                         int64_t step, bool foretold) {
  Events events(program, rank, step, foretold);
  for (const TimedAction& timed : actions) events.add(timed);
  return events.text();
}

std::string foretold_events(const Plan& plan, const Program& program, int64_t begin_ns,
                            int64_t step) {
  const Simulation simulation = simulate(program, durations_of(plan, program));
  std::vector<std::vector<TimedAction>> actions(program.actions.size());
  for (const Span& span : simulation.spans) {
    actions[static_cast<size_t>(span.rank)].push_back({span.action,
                                                       begin_ns + std::llround(span.begin_ns),
                                                       begin_ns + std::llround(span.end_ns)});
  }
  std::vector<std::string> texts;
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    auto& mine = actions[static_cast<size_t>(rank)];
    std::ranges::stable_sort(mine, {}, &TimedAction::begin_ns);
    std::string text = trace_events(program, rank, mine, step, /*foretold=*/true);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, ",\n"));
}

}  // namespace rannc::plan
