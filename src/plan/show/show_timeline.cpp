#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/show/clock.h"
#include "plan/show/notes.h"
#include "rannc/plan/show.h"
#include "rannc/util/human.h"
#include "rannc/util/text_table.h"

namespace rannc::plan {
namespace {

/// Ranks that a timeline shows, each in a line.
/// tuned by: what is shown; nothing is decided by it.
/// without it: a picture of a thousand ranks would be shown, which nobody reads.
constexpr size_t kMostTimelines = 64;

/// One line of the picture: in each column what takes most of it, or waiting. Where all actions are
/// too short for that, as many columns have one as the actions are long together.
class Line {
 public:
  Line(size_t columns, double column_ns) : column_ns_(column_ns), columns_(columns) {}

  void draw(double begin_ns, double end_ns, char symbol) {
    const double begin = begin_ns / column_ns_, end = end_ns / column_ns_;
    for (auto column = static_cast<size_t>(begin); column < columns_.size(); ++column) {
      const auto left = static_cast<double>(column);
      if (left >= end) break;
      const double share = std::min(end, left + 1) - std::max(begin, left);
      Column& here = columns_[column];
      here.busy += share;
      if (share < here.longest) continue;
      here.longest = share;
      here.symbol = symbol;
    }
  }

  [[nodiscard]] std::string text() const {
    std::string text;
    double owed = 0;  // of what is too short for a column of its own
    for (const Column& column : columns_) {
      const bool mostly = column.busy >= 0.5;
      owed = mostly ? 0 : owed + column.busy;
      const bool drawn = mostly || (column.busy > 0 && owed >= 1);
      text += drawn ? column.symbol : '.';
      if (drawn && !mostly) owed -= 1;
    }
    return text;
  }

 private:
  struct Column {
    double busy = 0, longest = 0;
    char symbol = '.';
  };

  double column_ns_;
  std::vector<Column> columns_;
};

std::string label(const Plan& plan, size_t group, size_t groups) {
  std::vector<size_t> stages;
  for (size_t stage = group; stage < plan.stages.size(); stage += groups) stages.push_back(stage);
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
}

}  // namespace

std::string show_timeline(const Plan& plan, size_t width) {
  if (!plan.feasible) return show_reason(plan) + "\n";
  const PlanNotes notes = read_notes(plan);
  const auto times = compute_times(plan, notes.transfers ? *notes.transfers : chain_of(plan));

  auto end_ns = static_cast<double>(plan.iteration_ns);
  for (const auto& group : times) end_ns = std::max(end_ns, group.back().end_ns);
  size_t margin = 0;
  const size_t shown = std::min(times.size(), kMostTimelines);
  for (size_t group = 0; group < shown; ++group) {
    margin = std::max(margin, label(plan, group, times.size()).size());
  }
  const size_t columns = std::max<size_t>(20, width - std::min(width, margin + 2));
  const double column_ns = std::max(end_ns, 1.0) / static_cast<double>(columns);

  const std::string total = human_ns(end_ns);
  std::string text = fmt::format("{:{}}  0{:>{}}\n", "", margin, total, columns - 1);
  for (size_t group = 0; group < shown; ++group) {
    Line line(columns, column_ns);
    int64_t reduce_ns = 0;
    for (size_t stage = group; stage < plan.stages.size(); stage += times.size()) {
      reduce_ns = std::max(reduce_ns, plan.stages[stage].predicted->reduce_ns);
    }
    const double computed = times[group].back().end_ns;
    line.draw(computed, std::min(end_ns, computed + static_cast<double>(reduce_ns)), '=');
    for (const TimedCompute& timed : times[group]) {
      const int digit = timed.compute.micro_batch % 10;
      line.draw(timed.begin_ns, timed.end_ns,
                static_cast<char>((timed.compute.forward ? '0' : 'a') + digit));
    }
    text += fmt::format("{:{}}  {}\n", label(plan, group, times.size()), margin, line.text());
  }
  if (times.size() > shown) text += fmt::format("and {} more\n", times.size() - shown);
  const std::string legend = fmt::format(
      "0-9: forward of a micro-batch, by its last digit; a-j: its backward; =: the stage's own "
      "gradient reduction, were none of it hidden; dots: waiting; one column is {}.{}",
      human_ns(column_ns),
      notes.transfers ? "" : " Transfers are not known, and take no time here.");
  text += "\n" + wrapped(legend, width) + "\n";
  return text;
}

}  // namespace rannc::plan
