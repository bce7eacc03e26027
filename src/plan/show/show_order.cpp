#include "plan/show/show_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace rannc::plan {
namespace {

std::string end_of(int stage, Rank rank) {
  if (stage == kUser) return fmt::format("the user on rank {}", rank);
  return fmt::format("stage {} on rank {}", stage, rank);
}

/// What a rank issues and computes, in order; without what follows the action in its list.
class Line {
 public:
  Line(const Program& program, Rank rank)
      : actions_(program.actions[rank]), issues_(program.issues[rank]) {}

  std::string write() {
    for (int action = 0; action <= static_cast<int>(actions_.size()); ++action) {
      while (is_next(action, /*inside=*/false)) add(std::to_string(issues_[next_++].place));
      if (action < static_cast<int>(actions_.size())) write(action);
    }
    return std::move(text_);
  }

 private:
  [[nodiscard]] bool is_next(int action, bool inside) const {
    return next_ < issues_.size() && issues_[next_].action == action &&
           issues_[next_].inside == inside;
  }

  void add(const std::string& word) {
    if (!text_.empty()) text_ += ' ';
    text_ += word;
  }

  void write(int index) {
    const Action& action = actions_[static_cast<size_t>(index)];
    if (action.kind == ActionKind::return_outputs) return add("return");
    if (action.kind != ActionKind::forward && action.kind != ActionKind::backward) return;
    std::vector<int> inside;
    while (is_next(index, /*inside=*/true)) inside.push_back(issues_[next_++].place);
    std::string word = fmt::format("{}{}.{}", action.kind == ActionKind::forward ? 'F' : 'B',
                                   action.stage, action.micro_batch);
    if (!inside.empty()) word += fmt::format("({})", fmt::join(inside, " "));
    add(word);
  }

  const std::vector<Action>& actions_;
  const std::vector<Issue>& issues_;
  size_t next_ = 0;
  std::string text_;
};

}  // namespace

std::string describe(const Program& program, const Communication& communication) {
  const std::string_view pass =
      communication.direction == Direction::forward ? "forward" : "backward";
  switch (communication.kind) {
    case CommunicationKind::transfer: {
      const Transfer& transfer = program.transfers[static_cast<size_t>(communication.index)];
      const std::string source = end_of(transfer.from_stage, transfer.from);
      const std::string target = end_of(transfer.to_stage, transfer.to);
      const bool forward = communication.direction == Direction::forward;
      return fmt::format("{} of value {} of micro-batch {}, from {} to {}",
                         forward ? "rows" : "gradient", transfer.value.index, transfer.micro_batch,
                         forward ? source : target, forward ? target : source);
    }
    case CommunicationKind::statistics:
      return fmt::format("statistics of node {} in the {} of stage {}", communication.part, pass,
                         communication.index);
    case CommunicationKind::buffers:
      return fmt::format("running statistics of stage {}", communication.index);
    case CommunicationKind::outputs:
      return "scalar outputs of all ranks";
    case CommunicationKind::bucket:
      return fmt::format(
          "bucket {} of reduction {}, over ranks {}", communication.part, communication.index,
          fmt::join(program.reductions[static_cast<size_t>(communication.index)].ranks, ", "));
  }
  return "";
}

std::string show_order(const Program& program) {
  std::string text;
  for (size_t place = 0; place < program.order.size(); ++place) {
    text += fmt::format("{}: {}\n", place, describe(program, program.order[place]));
  }
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    text += fmt::format("rank {}: {}\n", rank, Line(program, rank).write());
  }
  return text;
}

}  // namespace rannc::plan
