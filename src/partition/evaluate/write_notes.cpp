#include "partition/evaluate/write_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "rannc/plan/mesh.h"
#include "rannc/plan/module_names.h"
#include "rannc/util/human.h"
#include "rannc/util/whole.h"

namespace rannc::partition {
namespace {

using Json = nlohmann::ordered_json;

// The kind of the search's answer where a plan of another arrangement was faster in runs.
constexpr const char* kSearchAnswer = "the times of operators";

// Names that come from a program, not from a file, may hold any bytes.
std::string text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double memory_limit(const cost::Cluster& cluster, const Request& request) {
  return cluster.device_memory_bytes * (1 - request.memory_margin);
}

Json describe(const TimeParts& parts) {
  return {{"slowest_stage", parts.slowest_stage},
          {"compute_ns", whole(parts.compute_ns)},
          {"bubble_ns", whole(parts.bubble_ns)},
          {"transfer_ns", whole(parts.transfer_ns)},
          {"reduction_ns", whole(parts.reduction_ns)}};
}

Json describe(const std::vector<TransferEvaluation>& transfers) {
  Json list = Json::array();
  for (const TransferEvaluation& transfer : transfers) {
    list.push_back({{"from", transfer.from},
                    {"to", transfer.to},
                    {"forward_ns", whole(transfer.forward_ns)},
                    {"backward_ns", whole(transfer.backward_ns)},
                    {"bytes", whole(transfer.bytes)},
                    {"grad", transfer.grad}});
  }
  return list;
}

/// Why a plan that fits is slower: the part that grew most.
std::string why_slower(const TimeParts& loser, const TimeParts& winner) {
  const double loss = loser.iteration_ns() - winner.iteration_ns();
  // The search's answer is the fastest; one that was changed because of how it ran may not be.
  if (loss <= -0.5) return fmt::format("predicted to be faster by {}", human_ns(-loss));
  if (loss < 0.5) return "as fast, by another plan";
  const std::pair<double, std::string> grown[] = {
      {loser.compute_ns - winner.compute_ns, "computes {} longer"},
      {loser.bubble_ns - winner.bubble_ns, "bubble {} longer"},
      {loser.transfer_ns - winner.transfer_ns, "transfers {} longer"},
      {loser.reduction_ns - winner.reduction_ns, "reduction {} longer"}};
  const auto& [more, what] =
      *std::ranges::max_element(grown, {}, [](const auto& part) { return part.first; });
  return fmt::format("slower by {}: {}", human_ns(loss),
                     fmt::format(fmt::runtime(what), human_ns(more)));
}

std::string why_too_large(double peak_bytes, double limit) {
  return fmt::format("needs {} of {}", human_bytes(peak_bytes), human_bytes(limit));
}

Json describe(const Alternative& other, const TimeParts& winner, double limit) {
  const std::string why =
      other.fits ? why_slower(other.parts, winner) : why_too_large(other.peak_bytes, limit);
  Json recompute = Json::array();
  for (const bool stage : other.recompute) recompute.push_back(stage);
  return {{"kind", other.kind},
          {"schedule", plan::name(other.schedule)},
          {"interleave", other.interleave},
          {"micro_batches", other.micro_batches},
          {"replicas", other.replicas},
          {"recompute", recompute},
          {"iteration_ns", whole(other.parts.iteration_ns())},
          {"peak_bytes", whole(other.peak_bytes)},
          {"parts", describe(other.parts)},
          {"why", why}};
}

/// The module of each node. Files that do not say it name nodes by their modules.
struct Modules {
  std::vector<std::string> all;
  std::unordered_map<std::string_view, size_t> place;

  explicit Modules(const cost::GraphProfile& profile) {
    const bool are_known = std::ranges::any_of(
        profile.nodes, [](const cost::ProfileNode& node) { return !node.module.empty(); });
    for (const cost::ProfileNode& node : profile.nodes) {
      place.emplace(node.name, all.size());
      all.push_back(are_known ? node.module : node.name);
    }
  }

  [[nodiscard]] std::vector<std::string> of(const plan::Stage& stage) const {
    std::vector<std::string> mine;
    for (const std::string& node : stage.nodes) mine.push_back(all[place.at(node)]);
    return mine;
  }
};

TimeParts read_parts(const Json& parts) {
  return {.slowest_stage = parts["slowest_stage"],
          .compute_ns = parts["compute_ns"],
          .bubble_ns = parts["bubble_ns"],
          .transfer_ns = parts["transfer_ns"],
          .reduction_ns = parts["reduction_ns"]};
}

/// What an alternative says of `plan`, its parts and the reason why it lost excepted.
Json as_alternative(const std::string& kind, const plan::Plan& plan) {
  Json replicas = Json::array(), recompute = Json::array();
  int64_t peak_bytes = 0;
  for (const plan::Stage& stage : plan.stages) {
    replicas.push_back(mesh_of(stage).replicas());
    recompute.push_back(stage.recompute);
    if (stage.predicted) peak_bytes = std::max(peak_bytes, stage.predicted->peak_bytes);
  }
  return {{"kind", kind},
          {"schedule", plan::name(plan.schedule)},
          {"interleave", plan.interleave},
          {"micro_batches", plan.micro_batches},
          {"replicas", replicas},
          {"recompute", recompute},
          {"iteration_ns", plan.iteration_ns},
          {"peak_bytes", peak_bytes}};
}

bool has_shape(const Json& other, const Json& plan) {
  const auto equal = [&](const char* key) { return other[key] == plan[key]; };
  return equal("schedule") && equal("interleave") && equal("replicas");
}

/// Whether an alternative is `plan`, as far as its note tells.
bool is_plan(const Json& other, const Json& plan) {
  const auto equal = [&](const char* key) { return other[key] == plan[key]; };
  return has_shape(other, plan) && equal("micro_batches") && equal("recompute") &&
         equal("iteration_ns");
}

void add_verdict(Json& notes, const cost::Cluster& cluster, const Request& request,
                 const Evaluation& evaluation, const TimeParts& parts) {
  notes["memory_limit_bytes"] = whole(memory_limit(cluster, request));
  notes["hosts"] = cluster.hosts;
  notes["devices_per_host"] = cluster.devices_per_host;
  if (!cluster.host_of_rank.empty()) notes["host_of_rank"] = cluster.host_of_rank;
  notes["parts"] = describe(parts);
  notes["transfers"] = describe(evaluation.transfers);
}

}  // namespace

std::string make_notes(const cost::Cluster& cluster, const Request& request,
                       const Evaluation& evaluation, const SearchReport& report) {
  Json notes;
  notes["search"] = report.complete ? "complete" : "cut";
  notes["nodes"] = report.nodes;
  notes["pieces"] = report.pieces;
  notes["blocks"] = report.blocks;
  notes["examined"] = report.examined;
  if (report.bound_ns > 0) {
    notes["bound_ns"] = whole(report.bound_ns);
    notes["gap"] = evaluation.iteration_ns / report.bound_ns;
  }
  add_verdict(notes, cluster, request, evaluation, report.parts);
  Json alternatives = Json::array();
  const double limit = memory_limit(cluster, request);
  for (const Alternative& other : report.alternatives) {
    alternatives.push_back(describe(other, report.parts, limit));
  }
  notes["alternatives"] = std::move(alternatives);
  return text(notes);
}

std::string changed_notes(const plan::Plan& plan, const cost::Cluster& cluster,
                          const Request& request, const Evaluation& evaluation,
                          const TimeParts& parts) {
  Json notes = plan.notes.empty() ? Json::object() : Json::parse(plan.notes);
  add_verdict(notes, cluster, request, evaluation, parts);
  if (notes.contains("bound_ns")) {
    notes["gap"] = evaluation.iteration_ns / notes["bound_ns"].get<double>();
  }
  if (!notes.contains("alternatives")) return text(notes);
  const Json same = as_alternative("", plan);
  Json others = Json::array();
  for (Json& other : notes["alternatives"]) {
    if (is_plan(other, same)) continue;
    const double peak_bytes = other["peak_bytes"], limit = memory_limit(cluster, request);
    other["why"] = peak_bytes <= limit ? why_slower(read_parts(other["parts"]), parts)
                                       : why_too_large(peak_bytes, limit);
    others.push_back(std::move(other));
  }
  notes["alternatives"] = std::move(others);
  return text(notes);
}

std::string search_notes(const plan::Plan& found, const plan::Plan& other) {
  Json notes = Json::parse(found.notes);
  Json answer = as_alternative(kSearchAnswer, found);
  answer["parts"] = notes["parts"];
  answer["why"] = "";  // by changed_notes()
  Json alternatives = Json::array({std::move(answer)});
  const Json same = as_alternative("", other);
  for (Json& each : notes["alternatives"]) {
    if (!has_shape(each, same)) alternatives.push_back(std::move(each));
  }
  notes["alternatives"] = std::move(alternatives);
  return text(notes);
}

std::string with_memory_of(const std::string& notes, const cost::Cluster& cluster) {
  Json changed = notes.empty() ? Json::object() : Json::parse(notes);
  changed["memory_limit_bytes"] = static_cast<int64_t>(cluster.device_memory_bytes);
  return text(changed);
}

std::string with_trial_notes(const std::string& notes, const std::vector<TriedPlan>& arrangements,
                             const std::vector<TriedPlan>& numbers) {
  Json changed = notes.empty() ? Json::object() : Json::parse(notes);
  if (numbers.size() > 1) {
    Json& tried = changed["tried_micro_batches"] = Json::array();
    for (const TriedPlan& plan : numbers) {
      tried.push_back({{"micro_batches", plan.micro_batches}, {"run_ns", whole(plan.run_ns)}});
    }
  }
  if (arrangements.size() < 2) return text(changed);
  Json& tried = changed["tried_shapes"] = Json::array();
  for (const TriedPlan& plan : arrangements) {
    tried.push_back({{"replicas", plan.arrangement.replicas},
                     {"schedule", plan::name(plan.arrangement.schedule)},
                     {"interleave", plan.arrangement.interleave},
                     {"micro_batches", plan.micro_batches},
                     {"run_ns", whole(plan.run_ns)}});
  }
  if (!changed.contains("alternatives")) return text(changed);
  for (Json& other : changed["alternatives"]) {
    const auto why = other["why"].get<std::string>();
    const bool ran =
        std::ranges::any_of(tried, [&](const Json& plan) { return has_shape(other, plan); });
    if (!ran || why.starts_with("slower") || why.starts_with("needs")) continue;
    other["why"] = why + ", but ran longer";
  }
  return text(changed);
}

std::vector<std::string> stage_notes(const cost::GraphProfile& profile, const plan::Plan& plan,
                                     const Evaluation& evaluation) {
  const Modules modules(profile);
  const plan::ModuleNames names(modules.all);
  std::vector<double> sent(plan.stages.size(), 0);
  for (const TransferEvaluation& transfer : evaluation.transfers) {
    sent[transfer.from] += transfer.bytes;
  }
  std::vector<std::string> notes;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const StageEvaluation& flow = evaluation.stages[stage];
    notes.push_back(text({{"modules", names.of(modules.of(plan.stages[stage]))},
                          {"in_bytes", whole(flow.in_bytes)},
                          {"graph_input_bytes", whole(flow.graph_input_bytes)},
                          {"out_bytes", whole(flow.out_bytes)},
                          {"send_bytes", whole(sent[stage])}}));
  }
  return notes;
}

}  // namespace rannc::partition
