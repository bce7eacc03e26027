#include "rannc/plan/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string>

#include "rannc/ir/cut.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

bool is_number(const ir::Value& value) { return value.dims.empty(); }

bool is_reduced(const ir::Value& value) {
  return value.rows.kind == ir::RowKind::mean || value.rows.kind == ir::RowKind::sum;
}

std::vector<ir::ValueId> each_once(const ir::Graph& graph) {
  std::vector<ir::ValueId> outputs = graph.outputs;
  std::ranges::sort(outputs);
  const auto repeats = std::ranges::unique(outputs);
  outputs.erase(repeats.begin(), repeats.end());
  return outputs;
}

/// Outputs from which a backward could start without being told a gradient.
std::vector<ir::ValueId> candidates(const ir::Graph& graph) {
  std::vector<ir::ValueId> found = each_once(graph);
  std::erase_if(found, [&](ir::ValueId output) {
    const ir::Value& value = graph[output];
    return !is_number(value) || !value.requires_grad || !ir::is_floating(value.dtype);
  });
  return found;
}

/// Whether all of `others` are computed on the way to `output`.
bool is_made_of(const ir::Graph& graph, ir::ValueId output,
                const std::vector<ir::ValueId>& others) {
  const std::vector<bool> leading = ir::leading_to(graph, {output});
  return std::ranges::all_of(others, [&](ir::ValueId other) { return leading[other.index]; });
}

[[noreturn]] void throw_no_loss(Schedule schedule, const ir::Graph& graph) {
  std::vector<std::string> names;
  for (ir::ValueId value : candidates(graph)) names.push_back("'" + graph[value].name + "'");
  const std::string why =
      names.empty() ? "no output is a floating number (a 0-dim tensor) that requires a gradient"
      : names.size() == 1 ? names[0] + " is neither a mean nor a sum over the rows of the batch"
                          : fmt::format("{} outputs are numbers that require a gradient: {}",
                                        names.size(), fmt::join(names, ", "));
  throw PlanError(fmt::format(
      "schedule '{}' runs backward before the outputs are returned, so it needs a model that "
      "returns its one loss in training mode, but {}.\n  Use schedule='gpipe', or return the loss "
      "from forward().",
      name(schedule), why));
}

}  // namespace

bool backward_comes_first(Schedule schedule) { return schedule != Schedule::gpipe; }

std::optional<ir::ValueId> loss_of(const ir::Graph& graph) {
  const std::vector<ir::ValueId> found = candidates(graph);
  const auto loss = std::ranges::find_if(found, [&](ir::ValueId output) {
    return found.size() == 1 || is_made_of(graph, output, found);
  });
  if (loss == found.end() || !is_reduced(graph[*loss])) return std::nullopt;
  return *loss;
}

bool can_be_dealt_out(const ir::Value& output) {
  return output.rows.kind != ir::RowKind::mixed || ir::has_row_dimension(output) ||
         std::ranges::none_of(output.dims, &ir::AffineInt::depends_on_rows);
}

std::vector<ir::ValueId> returned_outputs(Schedule schedule, const ir::Graph& graph, bool training,
                                          Outputs wanted, int ranks) {
  std::vector<ir::ValueId> outputs = each_once(graph);
  const bool only_loss = training && backward_comes_first(schedule);
  const std::optional<ir::ValueId> loss = only_loss ? loss_of(graph) : std::nullopt;
  if (only_loss && !loss) throw_no_loss(schedule, graph);
  if (wanted == Outputs::all) return outputs;
  if (!only_loss) {
    const auto dealt = [&](ir::ValueId output) { return can_be_dealt_out(graph[output]); };
    if (ranks > 1 && std::ranges::any_of(outputs, dealt))
      std::erase_if(outputs, std::not_fn(dealt));
    return outputs;
  }
  std::erase_if(outputs, [&](ir::ValueId output) {
    const ir::Value& value = graph[output];
    const bool travels_with_loss =
        is_number(value) && (is_reduced(value) || value.rows.kind == ir::RowKind::none);
    return output != *loss && !travels_with_loss;
  });
  return outputs;
}

}  // namespace rannc::plan
