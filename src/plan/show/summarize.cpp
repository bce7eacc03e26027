#include <fmt/format.h>

#include "plan/lower/placement.h"
#include "rannc/plan/module_names.h"
#include "rannc/plan/program.h"
#include "rannc/util/json.h"

namespace rannc::plan {

std::vector<StageSummary> summarize(const Plan& plan, const ir::Graph& graph, int64_t global_rows) {
  const Placement placement = place(plan, graph);
  const auto taken = taken_from_outside(graph, placement, graph.outputs);

  std::vector<std::string> all_modules;
  for (const std::vector<ir::NodeId>& nodes : placement.nodes) {
    for (ir::NodeId node : nodes) all_modules.push_back(graph[node].module);
  }

  const ModuleNames names(all_modules);

  std::vector<StageSummary> summaries;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    StageSummary& summary = summaries.emplace_back();
    std::vector<std::string> modules;
    for (ir::NodeId node : placement.nodes[stage]) modules.push_back(graph[node].module);
    summary.modules = names.of(modules);
    summary.ranks = number_ranges(plan.stages[stage].ranks);
    for (ir::ValueId value : taken[stage]) {
      if (graph[value].kind == ir::ValueKind::parameter) {
        summary.param_bytes += graph[value].bytes(global_rows);
      }
    }
    if (plan.stages[stage].predicted) summary.predicted = *plan.stages[stage].predicted;
    summary.recompute = plan.stages[stage].runs_again();
  }

  const int64_t micro_rows = (global_rows + plan.micro_batches - 1) / plan.micro_batches;
  const bool has_loss = backward_comes_first(plan.schedule) && loss_of(graph);
  int ranks = 0;
  for (const Stage& stage : plan.stages) {
    for (Rank rank : stage.ranks) ranks = std::max(ranks, rank + 1);
  }
  const std::vector<ir::ValueId> outputs =
      returned_outputs(plan.schedule, graph, /*training=*/has_loss, Outputs::loss, ranks);
  for (const Crossing& crossing : crossings(plan, graph, outputs)) {
    if (crossing.from_stage == kUser) continue;
    summaries[crossing.from_stage].send_bytes += graph[crossing.value].bytes(micro_rows);
  }
  return summaries;
}

Plan with_summary(Plan plan, const ir::Graph& graph, int64_t global_rows) {
  const std::vector<StageSummary> summaries = summarize(plan, graph, global_rows);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    std::string& notes = plan.stages[stage].notes;
    std::string members = fmt::format("\"modules\":{},\"param_bytes\":{},\"send_bytes\":{}",
                                      json::quote(summaries[stage].modules),
                                      summaries[stage].param_bytes, summaries[stage].send_bytes);
    if (!notes.empty()) {
      const json::Document document(notes, "notes of a stage");
      for (const json::Place& member : document.root().members()) {
        const std::string& key = member.key();
        if (key == "modules" || key == "param_bytes" || key == "send_bytes") continue;
        members += fmt::format(",{}:{}", json::quote(key), member.dump());
      }
    }
    notes = fmt::format("{{{}}}", members);
  }
  return plan;
}

}  // namespace rannc::plan
