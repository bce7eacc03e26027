#include "rannc/plan/show.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "plan/show/notes.h"
#include "plan/show/show_groups.h"
#include "plan/show/stage_names.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/module_names.h"
#include "rannc/util/human.h"
#include "rannc/util/text_table.h"

namespace rannc::plan {
namespace {

using Side = TextTable::Side;

std::string bytes(std::optional<double> count) { return count ? human_bytes(*count) : "-"; }

std::string count(double number, std::string_view one, std::string_view many = "") {
  if (number == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{:.0f} {}s", number, one)
                      : fmt::format("{:.0f} {}", number, many);
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.3g} %", 100 * part / whole) : "-";
}

std::string rate(double a_second) {
  return a_second < 100 ? fmt::format("{:.3g}", a_second) : fmt::format("{:.0f}", a_second);
}

std::string headline(const Plan& plan, const PlanNotes& notes, std::optional<int64_t> rows,
                     size_t width) {
  std::set<Rank> ranks;
  for (const Stage& stage : plan.stages) ranks.insert(stage.ranks.begin(), stage.ranks.end());
  std::string text = count(static_cast<double>(plan.stages.size()), "stage") + " on " +
                     count(static_cast<double>(ranks.size()), "rank");
  if (notes.hosts && notes.devices_per_host) {
    // Groups stand for ranks there.
    const int places = plan.stages.empty() ? 1 : plan.stages.front().axes.places();
    const double all = notes.host_of_rank.empty()
                           ? static_cast<double>(*notes.hosts) * *notes.devices_per_host
                           : static_cast<double>(notes.host_of_rank.size());
    text += fmt::format(" of {:.0f}", all * places);
  }
  text += ", " + count(static_cast<double>(plan.micro_batches), "micro-batch", "micro-batches");
  if (rows) {
    const double mean = static_cast<double>(*rows) / static_cast<double>(plan.micro_batches);
    const double most = std::ceil(mean), least = std::floor(mean);
    text += least == most ? fmt::format(" of {}", count(most, "row"))
                          : fmt::format(" of {:.0f} to {:.0f} rows", least, most);
  }
  text += fmt::format(", schedule {}", name(plan.schedule));
  if (plan.schedule == Schedule::interleaved) text += fmt::format(" (x{})", plan.interleave);
  const bool shares = std::ranges::any_of(plan.stages, &Stage::shares_parameters);
  if (plan.shard_optimizer) text += ", replicas share the optimizer's state";
  if (shares) text += ", parameters and gradients";
  if (plan.iteration_ns > 0) {
    text += fmt::format(", iteration {}", human_ns(static_cast<double>(plan.iteration_ns)));
    if (rows) {
      const double speed =
          1e9 * static_cast<double>(*rows) / static_cast<double>(plan.iteration_ns);
      const double each = speed / static_cast<double>(ranks.size());
      text += fmt::format(", {} rows/s", rate(speed));
      if (ranks.size() > 1) text += fmt::format(" ({} for each rank)", rate(each));
    }
  }
  // Written by the runtime: iteration_ns gives every rank a device of its own.
  if (plan.step.ns && *plan.step.ns > plan.iteration_ns) {
    text += fmt::format(", step {} on these cores", human_ns(static_cast<double>(*plan.step.ns)));
  }
  return wrapped(text, width) + "\n";
}

std::string ranks_and_hosts(const Stage& stage, const PlanNotes& notes) {
  const std::string ranks = number_ranges(stage.ranks);
  if (notes.hosts.value_or(1) == 1 || !notes.devices_per_host) return ranks;
  std::vector<int> hosts;
  for (const Rank rank : stage.ranks) {
    const auto k = static_cast<size_t>(rank);
    const int host = k < notes.host_of_rank.size()
                         ? notes.host_of_rank[k]
                         : static_cast<int>(rank / std::max(1.0, *notes.devices_per_host));
    if (hosts.empty() || hosts.back() != host) hosts.push_back(host);
  }
  std::ranges::sort(hosts);
  hosts.erase(std::ranges::unique(hosts).begin(), hosts.end());
  return fmt::format("{} (host {})", ranks, number_ranges(hosts));
}

/// Lines that what a stage holds may take.
constexpr size_t kMostLines = 3;

std::string stage_table(const Plan& plan, const PlanNotes& notes, size_t width) {
  constexpr size_t kRanksWidth = 24, kModules = 2;
  TextTable table;
  table.column("stage");
  table.column("ranks", Side::left);
  table.column("modules", Side::left);
  std::vector<std::vector<std::string>> rows;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::string ranks = ranks_and_hosts(plan.stages[s], notes);
    rows.push_back({std::to_string(s), names_in_lines(ranks, kRanksWidth, kMostLines), ""});
    table.row(rows.back());
  }
  const size_t room = table.room(kModules, width);
  TextTable named;
  named.column("stage");
  named.column("ranks", Side::left);
  named.column("modules", Side::left);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::string name = printable(stage_name(plan, s, read_stage_notes(plan, s)));
    rows[s][kModules] = names_in_lines(name, room, kMostLines);
    named.row(std::move(rows[s]));
  }
  return named.text(width);
}

std::string what_recomputes(const Stage& stage) {
  if (stage.segments.empty()) return stage.recompute ? "yes" : "no";
  return fmt::format("{} part{}", stage.segments.size(), stage.segments.size() == 1 ? "" : "s");
}

std::string flow_table(const Plan& plan, size_t width) {
  TextTable table;
  table.column("stage");
  for (const char* heading : {"rows", "forward", "backward"}) table.column(heading);
  table.column("recompute", Side::left);
  for (const char* heading : {"takes", "gives", "reduction"}) table.column(heading);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const StageNotes flow = read_stage_notes(plan, s);
    const auto time = [&](int64_t Prediction::*member) {
      return stage.predicted ? human_ns(static_cast<double>(*stage.predicted.*member)) : "-";
    };
    table.row({std::to_string(s), stage.predicted ? std::to_string(stage.predicted->rows) : "-",
               time(&Prediction::forward_ns), time(&Prediction::backward_ns),
               what_recomputes(stage), bytes(flow.in_bytes),
               bytes(flow.out_bytes ? flow.out_bytes : flow.send_bytes),
               time(&Prediction::reduce_ns)});
  }
  return "\nOne micro-batch on one rank\n\n" + table.text(width);
}

/// The unit in which the largest number of a table is at least 1.
struct Unit {
  const char* name;
  double bytes;
};
Unit unit_for(double most) {
  constexpr Unit kUnits[] = {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
  for (const Unit& unit : kUnits) {
    if (most >= unit.bytes) return unit;
  }
  return {"B", 1};
}

std::string in(const Unit& unit, int64_t bytes) {
  const double count = static_cast<double>(bytes) / unit.bytes;
  return unit.bytes == 1 || bytes == 0 ? fmt::format("{:.0f}", count)
         : count >= 0.1                ? fmt::format("{:.1f}", count)
         : count >= 0.0005             ? fmt::format("{:.3f}", count)
                                       : "0.000";
}

std::string memory_table(const Plan& plan, const PlanNotes& notes, size_t width) {
  constexpr std::pair<const char*, int64_t Prediction::*> kKinds[] = {
      {"params", &Prediction::param_bytes},        {"grads", &Prediction::gradient_bytes},
      {"optimizer", &Prediction::optimizer_bytes}, {"activations", &Prediction::activation_bytes},
      {"buffers", &Prediction::buffer_bytes},      {"work-\nspace", &Prediction::workspace_bytes}};
  // The peaks of all kinds do not meet, so a step may hold less than their sum.
  const auto most_of = [&](size_t s) {
    return plan.step.peak_bytes.empty() ? plan.stages[s].predicted->peak_bytes
                                        : plan.step.peak_bytes[s];
  };
  double largest = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].predicted) continue;
    largest = std::max({largest, static_cast<double>(plan.stages[s].predicted->peak_bytes),
                        static_cast<double>(most_of(s))});
  }
  const Unit unit = unit_for(largest);
  TextTable table;
  table.column("stage");
  for (const auto& [heading, member] : kKinds) table.column(heading);
  table.column(plan.step.peak_bytes.empty() ? "peak" : "peak in\na step");
  if (notes.memory_limit_bytes) table.column("of\nlimit");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::optional<Prediction>& predicted = plan.stages[s].predicted;
    if (!predicted) continue;
    std::vector<std::string> cells{std::to_string(s)};
    for (const auto& [heading, member] : kKinds) cells.push_back(in(unit, *predicted.*member));
    const int64_t most = most_of(s);
    cells.push_back(in(unit, most));
    if (notes.memory_limit_bytes) {
      cells.push_back(percent(static_cast<double>(most), *notes.memory_limit_bytes));
    }
    table.row(std::move(cells));
  }
  const std::string limit = notes.memory_limit_bytes
                                ? fmt::format(" (limit {})", human_bytes(*notes.memory_limit_bytes))
                                : "";
  return fmt::format("\nMemory of one rank in {}{}\n\n{}", unit.name, limit, table.text(width));
}

std::string time_table(const PartsNote& parts, size_t width) {
  const double total = parts.compute_ns + parts.bubble_ns + parts.transfer_ns + parts.reduction_ns;
  TextTable table;
  table.column("part", Side::left);
  const bool long_step = total >= 1e10;
  table.column(long_step ? "s" : "ms");
  table.column("share");
  const auto row = [&](const std::string& part, double ns) {
    table.row({part, fmt::format("{:.3f}", ns / (long_step ? 1e9 : 1e6)), percent(ns, total)});
  };
  row("compute of the busiest ranks", parts.compute_ns);
  row("bubble: their waiting, were transfers free", parts.bubble_ns);
  row("waiting for transfers", parts.transfer_ns);
  row("gradient reduction after the last backward", parts.reduction_ns);
  return fmt::format("\nWhere the time goes (stage {} is the slowest)\n\n{}", parts.slowest_stage,
                     table.text(width));
}

std::string tried(const Plan& plan, const std::vector<TriedNote>& runs, size_t width) {
  std::string text;
  for (const TriedNote& run : runs) {
    // They may differ by little.
    text +=
        fmt::format("{}{}: {:.4g} ms{}", text.empty() ? "" : ", ", run.micro_batches,
                    run.run_ns / 1e6, run.micro_batches == plan.micro_batches ? " (taken)" : "");
  }
  return text.empty() ? text : "\n" + wrapped("Micro-batches tried: " + text, width) + ".\n";
}

std::string tried_table(const Plan& plan, const std::vector<TriedShapeNote>& runs, size_t width) {
  std::vector<int64_t> replicas;
  for (const Stage& stage : plan.stages) replicas.push_back(mesh_of(stage).replicas());
  TextTable table;
  table.column("replicas of plans that ran", Side::left);
  table.column("schedule", Side::left);
  table.column("micro-batches");
  table.column("time of a run");
  table.column("", Side::left);
  for (const TriedShapeNote& run : runs) {
    const bool taken = run.replicas == replicas && run.schedule == name(plan.schedule) &&
                       run.interleave == plan.interleave;
    table.row({folded(run.replicas), run.schedule, std::to_string(run.micro_batches),
               fmt::format("{:.4g} ms", run.run_ns / 1e6), taken ? "taken" : ""});
  }
  return "\n" + table.text(width);
}

std::string bound(const PlanNotes& notes, size_t width) {
  std::string text;
  if (notes.bound_ns && notes.gap) {
    text = "\n" + wrapped(fmt::format("No plan of this request is faster than {}: this one takes "
                                      "{:.3f} times as long.",
                                      human_ns(*notes.bound_ns), *notes.gap),
                          width);
  }
  if (notes.search.empty()) return text.empty() ? text : text + "\n";
  std::string looked_at;
  if (notes.examined) looked_at = fmt::format(" {:.0f} plans simulated", *notes.examined);
  if (notes.nodes && notes.blocks) {
    looked_at += fmt::format("{} {} in {}", looked_at.empty() ? "" : ",",
                             count(*notes.nodes, "node"), count(*notes.blocks, "block"));
  }
  return text + "\n" +
         wrapped(fmt::format("The search {}:{}.", notes.search == "cut" ? "was cut" : "is complete",
                             looked_at.empty() ? " nothing is known of it" : looked_at),
                 width) +
         "\n";
}

/// Alternatives that are shown; they are in the order of their times, and all are in the file.
constexpr size_t kMostAlternatives = 12;

/// One line for each; what is wide and tells least is left out where the terminal is narrow.
std::string alternative_table(const std::vector<AlternativeNote>& alternatives, size_t width) {
  constexpr size_t kWidestReplicas = 24;
  const size_t shown = std::min(alternatives.size(), kMostAlternatives);
  const std::string more =
      shown < alternatives.size()
          ? fmt::format("and {} more, in the plan's file\n", alternatives.size() - shown)
          : "";
  for (size_t details = 3;; --details) {
    TextTable table;
    table.column("best plan with", Side::left);
    if (details > 1) table.column("schedule", Side::left);
    if (details > 0) table.column("micro-batches");
    if (details > 2) table.column("replicas", Side::left);
    table.column("iteration");
    table.column("why it lost", Side::left);
    for (const AlternativeNote& other : std::span(alternatives).first(shown)) {
      std::vector<std::string> cells{printable(other.kind)};
      if (details > 1) cells.push_back(printable(other.schedule));
      if (details > 0) cells.push_back(std::to_string(other.micro_batches));
      if (details > 2) {
        std::string replicas = folded(other.replicas);
        if (replicas.size() > kWidestReplicas) {
          replicas = replicas.substr(0, kWidestReplicas - 3) + "...";
        }
        cells.push_back(std::move(replicas));
      }
      cells.push_back(human_ns(other.iteration_ns));
      cells.push_back(printable(other.why));
      table.row(std::move(cells));
    }
    if (details == 0 || table.width() <= width) return "\n" + table.text(width) + more;
  }
}

/// Of each stage, all that the plan says it holds.
std::string all_names(const Plan& plan, size_t width) {
  constexpr size_t kIndent = 2;
  std::string text = "\nOperators of each stage\n";
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    text += fmt::format("\nstage {}\n", s);
    std::string line(kIndent, ' ');
    for (const std::string& node : plan.stages[s].nodes) {
      const std::string name = printable(node);
      if (line.size() > kIndent && line.size() + 1 + name.size() > width) {
        text += line + "\n";
        line.assign(kIndent, ' ');
      }
      line += (line.size() > kIndent ? " " : "") + name;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string show_reason(const Plan& plan) {
  // The planner's own reasons begin in this way; others may not.
  constexpr std::string_view kOpening = "no plan ";
  if (!plan.reason.starts_with(kOpening)) return "No plan fits: " + plan.reason;
  return "No plan " + plan.reason.substr(kOpening.size());
}

std::string show(const Plan& plan, size_t width, std::optional<int64_t> global_batch,
                 bool with_names) {
  if (!plan.feasible) return wrapped(show_reason(plan), width) + "\n";
  const PlanNotes notes = read_notes(plan);
  const auto rows = global_batch ? global_batch : plan.made_for.global_batch;
  std::string text = headline(plan, notes, rows, width) + "\n" + stage_table(plan, notes, width) +
                     group_table(plan, width);
  const auto is_known = [](const Stage& stage) { return stage.predicted.has_value(); };
  if (std::ranges::any_of(plan.stages, is_known)) {
    text += flow_table(plan, width) + memory_table(plan, notes, width);
  }
  if (notes.parts) text += time_table(*notes.parts, width);
  if (!notes.tried_shapes.empty()) text += tried_table(plan, notes.tried_shapes, width);
  text += tried(plan, notes.tried_micro_batches, width) + bound(notes, width);
  if (!notes.alternatives.empty()) text += alternative_table(notes.alternatives, width);
  if (with_names) text += all_names(plan, width);
  return text;
}

std::string headline(const Plan& plan) {
  if (!plan.feasible) return show_reason(plan);
  const std::string text = headline(plan, read_notes(plan), plan.made_for.global_batch,
                                    std::numeric_limits<size_t>::max());
  return text.substr(0, text.size() - 1);
}

}  // namespace rannc::plan
