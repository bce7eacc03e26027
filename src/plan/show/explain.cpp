#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "plan/show/notes.h"
#include "plan/show/show_groups.h"
#include "plan/show/stage_names.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/module_names.h"
#include "rannc/plan/show.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"
#include "rannc/util/text_table.h"

namespace rannc::plan {
namespace {

bool is_in(std::string_view node, std::string_view module) {
  return node.starts_with(module) && (node.size() == module.size() || node[module.size()] == '.');
}

/// How many nodes of `module` each stage holds.
std::vector<size_t> held(const Plan& plan, std::string_view module) {
  std::vector<size_t> counts;
  for (const Stage& stage : plan.stages) {
    counts.push_back(static_cast<size_t>(std::ranges::count_if(
        stage.nodes, [&](const std::string& node) { return is_in(node, module); })));
  }
  return counts;
}

[[noreturn]] void throw_unknown(const Plan& plan, std::string_view module) {
  std::set<std::string> known;
  for (const Stage& stage : plan.stages) {
    for (std::string_view path : stage.nodes) {
      // Once a module is known, so are those around it.
      while (known.emplace(path).second && path.find('.') != std::string_view::npos) {
        path = path.substr(0, path.rfind('.'));
      }
    }
  }
  const std::string close = closest(module, {known.begin(), known.end()});
  throw PlanError(fmt::format("the plan has no module and no node '{}'{}", module,
                              close.empty() ? "" : fmt::format("; did you mean '{}'?", close)));
}

double busy_ns(const Stage& stage) {
  return static_cast<double>(stage.predicted->forward_ns + stage.predicted->backward_ns);
}

/// Bytes and time of what crosses from the stages before `border` to those from it on.
struct Cut {
  double bytes = 0, longest_ns = 0;
};
Cut cut_before(size_t border, const std::vector<TransferNote>& transfers) {
  Cut cut;
  for (const TransferNote& transfer : transfers) {
    if (static_cast<size_t>(transfer.from) >= border || static_cast<size_t>(transfer.to) < border) {
      continue;
    }
    cut.bytes += transfer.bytes;
    cut.longest_ns = std::max({cut.longest_ns, transfer.forward_ns, transfer.backward_ns});
  }
  return cut;
}

class Explanation {
 public:
  Explanation(const Plan& plan, size_t width) : plan_(plan), notes_(read_notes(plan)) {
    width_ = width;
  }

  [[nodiscard]] std::string where(std::string_view module,
                                  const std::vector<size_t>& counts) const {
    size_t total = 0, stages = 0;
    for (const size_t count : counts) {
      total += count;
      stages += count > 0 ? 1 : 0;
    }
    std::string text;
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      const size_t all = plan_.stages[s].nodes.size();
      text += fmt::format(
          "{}stage {} of {}: {}{} of the stage's {} nodes", text.empty() ? "" : ";\n  ", s,
          plan_.stages.size(),
          stages == 1 ? "" : fmt::format("{} of the module's {} nodes, ", counts[s], total),
          counts[s] == all ? "all" : std::to_string(counts[s]), all);
    }
    return fmt::format("'{}' is in {}{}.\n", printable(module),
                       stages == 1 ? "" : fmt::format("{} stages:\n  ", stages), text);
  }

  [[nodiscard]] std::string stage(size_t s) const {
    const Stage& stage = plan_.stages[s];
    std::string text =
        fmt::format("\nStage {} runs on rank{} {}{} and holds\n  {}\n", s,
                    mesh_of(stage).mesh().size() == 1 ? "" : "s", number_ranges(stage.ranks),
                    stage.runs_again() ? ", recomputes," : "",
                    indented(names_in_lines(name(s), width_ - 2, /*lines=*/3)));
    text += group_text(plan_, s, width_);
    text += stages_around(s);
    if (!notes_.transfers || plan_.stages.size() == 1) return text;
    text += '\n';
    if (s > 0) text += border(s);
    if (s + 1 < plan_.stages.size()) text += border(s + 1);
    return text;
  }

 private:
  [[nodiscard]] std::string name(size_t s) const {
    return printable(stage_name(plan_, s, read_stage_notes(plan_, s)));
  }

  /// Lines behind the first one begin as that does.
  static std::string indented(std::string text) {
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++at) {
      text.insert(at + 1, "  ");
    }
    return text;
  }

  /// The stage between its neighbours: what moving a border would trade.
  [[nodiscard]] std::string stages_around(size_t s) const {
    double slowest = 0;
    for (const Stage& stage : plan_.stages) {
      if (stage.predicted) slowest = std::max(slowest, busy_ns(stage));
    }
    TextTable table;
    table.column("", TextTable::Side::left);
    for (const char* heading :
         {"replicas", "forward +\nbackward", "of the\nslowest", "peak\nmemory", "of\nlimit"}) {
      table.column(heading);
    }
    for (size_t other = s == 0 ? 0 : s - 1; other < std::min(s + 2, plan_.stages.size()); ++other) {
      const Stage& stage = plan_.stages[other];
      const std::string where = other < s ? "before" : other > s ? "behind" : "this";
      std::vector<std::string> cells{fmt::format("stage {} ({})", other, where),
                                     std::to_string(mesh_of(stage).replicas())};
      if (stage.predicted) {
        const auto peak =
            static_cast<double>(plan_.step.peak_bytes.empty() ? stage.predicted->peak_bytes
                                                              : plan_.step.peak_bytes[other]);
        cells.push_back(human_ns(busy_ns(stage)));
        cells.push_back(share(busy_ns(stage), slowest));
        cells.push_back(human_bytes(peak));
        cells.push_back(notes_.memory_limit_bytes ? share(peak, *notes_.memory_limit_bytes) : "-");
      } else {
        cells.insert(cells.end(), 4, "-");
      }
      table.row(std::move(cells));
    }
    return "\n" + table.text(width_);
  }

  static std::string share(double part, double whole) {
    return whole > 0 ? fmt::format("{:.3g} %", 100 * part / whole) : "-";
  }

  [[nodiscard]] std::string border(size_t border) const {
    const Cut cut = cut_before(border, *notes_.transfers);
    return wrapped(
               fmt::format("The border between stages {} and {} cuts {} per micro-batch; the "
                           "longest transfer over it takes {}.",
                           border - 1, border, human_bytes(cut.bytes), human_ns(cut.longest_ns)),
               width_) +
           "\n";
  }

  const Plan& plan_;
  PlanNotes notes_;
  size_t width_ = 0;
};

}  // namespace

std::string explain(const Plan& plan, std::string_view module, size_t width) {
  if (!plan.feasible) return wrapped(show_reason(plan), width) + "\n";
  const std::vector<size_t> counts = held(plan, module);
  if (std::ranges::all_of(counts, [](size_t count) { return count == 0; })) {
    throw_unknown(plan, module);
  }
  const Explanation explanation(plan, width);
  std::string text = explanation.where(module, counts);
  for (size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] > 0) text += explanation.stage(s);
  }
  return text;
}

}  // namespace rannc::plan
