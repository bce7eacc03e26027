#include "plan/show/show_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/show/notes.h"
#include "rannc/util/human.h"
#include "rannc/util/text_table.h"

namespace rannc::plan {
namespace {

constexpr size_t kMostLines = 3;

std::string factors_of(const Stage& stage) {
  std::string text =
      stage.factors.empty() ? "none" : printable(fmt::format("{}", fmt::join(stage.factors, ", ")));
  return stage.sequence_parallel ? text + "; the sequence" : text;
}

/// One line for each node that runs whole or factor that is not cut.
std::string reasons(const GroupNote& note, size_t width) {
  std::string text;
  for (const std::string& reason : note.whole)
    text += wrapped("- " + printable(reason), width) + "\n";
  if (note.more_whole > 0) text += fmt::format("- and {} more\n", note.more_whole);
  return text;
}

}  // namespace

std::string group_table(const Plan& plan, size_t width) {
  TextTable table;
  table.column("stage");
  table.column("mesh");
  table.column("parameters\ncut");
  table.column("collectives\nsend");
  table.column("take");
  table.column("factors", TextTable::Side::left);
  constexpr size_t kFactors = 5;
  bool any = false;
  std::string whole;
  std::vector<std::vector<std::string>> rows;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.axes == Axes{}) continue;
    any = true;
    const auto note = read_stage_notes(plan, s).group;
    rows.push_back({std::to_string(s), fmt::format("{} x {}", stage.axes.x, stage.axes.y),
                    note && note->parameter_bytes > 0
                        ? fmt::format("{:.3g} %", 100 * note->cut_bytes / note->parameter_bytes)
                        : "-",
                    note ? human_bytes(note->collective_bytes) : "-",
                    note && note->collective_ns > 0 ? human_ns(note->collective_ns) : "-", ""});
    table.row(rows.back());
    if (note) {
      const std::string lines = reasons(*note, width);
      if (!lines.empty()) whole += fmt::format("Whole on each rank of stage {}:\n{}", s, lines);
    }
  }
  if (!any) return "";
  const size_t room = table.room(kFactors, width);
  TextTable named;
  named.column("stage");
  named.column("mesh");
  named.column("parameters\ncut");
  named.column("collectives\nsend");
  named.column("take");
  named.column("factors", TextTable::Side::left);
  size_t at = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.axes == Axes{}) continue;
    rows[at][kFactors] = names_in_lines(factors_of(stage), room, kMostLines);
    named.row(std::move(rows[at++]));
  }
  return "\nLayers that groups of ranks compute together; a rank sends for one micro-batch\n\n" +
         named.text(width) + whole;
}

std::string group_text(const Plan& plan, size_t s, size_t width) {
  const Stage& stage = plan.stages[s];
  if (stage.axes == Axes{}) return "";
  std::string text =
      wrapped(fmt::format("Groups of {} ranks compute its layers together, cut along {}.",
                          stage.axes.places(), factors_of(stage)),
              width) +
      "\n";
  const auto note = read_stage_notes(plan, s).group;
  if (!note) return text;
  const std::string time =
      note->collective_ns > 0 ? ", which takes " + human_ns(note->collective_ns) : "";
  text += wrapped(fmt::format("Of {} of parameters {} are cut. A rank sends {} for collectives of "
                              "one micro-batch{}.",
                              human_bytes(note->parameter_bytes), human_bytes(note->cut_bytes),
                              human_bytes(note->collective_bytes), time),
                  width) +
          "\n";
  const std::string lines = reasons(*note, width);
  return text + (lines.empty() ? "" : "Whole on each rank:\n" + lines);
}

}  // namespace rannc::plan
