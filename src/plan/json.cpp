#include "rannc/util/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/typed_notes.h"
#include "rannc/plan/plan.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

struct PredictionField {
  std::string_view key;
  int64_t Prediction::*member;
};
constexpr PredictionField kPredictionFields[] = {
    {"rows", &Prediction::rows},
    {"forward_ns", &Prediction::forward_ns},
    {"backward_ns", &Prediction::backward_ns},
    {"reduce_ns", &Prediction::reduce_ns},
    {"param_bytes", &Prediction::param_bytes},
    {"gradient_bytes", &Prediction::gradient_bytes},
    {"optimizer_bytes", &Prediction::optimizer_bytes},
    {"activation_bytes", &Prediction::activation_bytes},
    {"buffer_bytes", &Prediction::buffer_bytes},
    {"workspace_bytes", &Prediction::workspace_bytes},
    {"peak_bytes", &Prediction::peak_bytes},
};

std::string notes_member(const std::string& notes, std::string_view separator) {
  return notes.empty() ? "" : fmt::format("{}\"notes\": {}", separator, notes);
}

/// Whatever wrote the notes, the file holds them without line ends, so equal plans are equal bytes.
std::string in_one_line(const std::string& notes) {
  if (notes.empty()) return "";
  const json::Document document(notes, "notes of the plan");
  if (!document.root().is_object()) document.root().fail("notes must be an object");
  return document.root().dump();
}

std::string text_of(const Prediction& prediction) {
  std::string text;
  for (const auto& [key, member] : kPredictionFields) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, prediction.*member);
  }
  return text;
}

std::string text_of(const std::vector<std::string>& nodes) {
  std::string text;
  for (const std::string& node : nodes) text += (text.empty() ? "" : ", ") + json::quote(node);
  return "[" + text + "]";
}

/// true or false, or the segments.
std::string text_of_recompute(const Stage& stage) {
  if (stage.segments.empty()) return stage.recompute ? "true" : "false";
  std::string text;
  for (const std::vector<std::string>& segment : stage.segments) {
    text += (text.empty() ? "" : ", ") + text_of(segment);
  }
  return "[" + text + "]";
}

std::string text_of(const Stage& stage) {
  std::string text =
      fmt::format("\"nodes\": {}, \"ranks\": [{}], \"recompute\": {}", text_of(stage.nodes),
                  fmt::join(stage.ranks, ", "), text_of_recompute(stage));
  if (stage.axes != Axes{}) {
    text += fmt::format(",\n   \"mesh\": [{}, {}], \"factors\": {{", stage.axes.x, stage.axes.y);
    for (const std::string& factor : stage.factors) {
      text += fmt::format("{}{}: \"y\"", &factor == stage.factors.data() ? "" : ", ",
                          json::quote(factor));
    }
    text += fmt::format("}}, \"sequence_parallel\": {}", stage.sequence_parallel);
  }
  if (stage.shares_parameters) text += ",\n   \"parameters\": \"shared\"";
  if (stage.predicted)
    text += fmt::format(",\n   \"predicted\": {{{}}}", text_of(*stage.predicted));
  return text + notes_member(in_one_line(stage.notes), ",\n   ");
}

std::optional<json::Place> find_notes(const json::Place& object) {
  const auto notes = object.find("notes");
  if (notes && !notes->is_object()) notes->fail("expected an object");
  return notes;
}

std::string read_notes(const json::Place& object, bool with_notes) {
  const auto notes = find_notes(object);
  return notes && with_notes ? notes->dump() : "";
}

Prediction read_prediction(const json::Place& place) {
  place.allow_only({"rows", "forward_ns", "backward_ns", "reduce_ns", "param_bytes",
                    "gradient_bytes", "optimizer_bytes", "activation_bytes", "buffer_bytes",
                    "workspace_bytes", "peak_bytes"});
  Prediction prediction;
  for (const auto& [key, member] : kPredictionFields) {
    prediction.*member = place.at(key).integer(0, INT64_MAX);
  }
  return prediction;
}

/// [x, y], and along which of the two each factor is cut.
void read_mesh(const json::Place& mesh, const json::Place& place, Stage& stage) {
  const std::vector<json::Place> sizes = mesh.elements();
  if (sizes.size() != 2) mesh.fail("a mesh is [x, y]");
  stage.axes = {static_cast<int>(sizes[0].integer(1, 1)),
                static_cast<int>(sizes[1].integer(1, INT32_MAX))};
  if (const auto sequence = place.find("sequence_parallel")) {
    stage.sequence_parallel = sequence->boolean();
  }
  const auto factors = place.find("factors");
  if (!factors) return;
  for (const json::Place& axis : factors->members()) {
    if (axis.string() != "y") axis.fail("factors are cut along \"y\"");
    stage.factors.push_back(axis.key());
  }
}

/// Consecutive nodes of the stage, each segment behind the one before.
void read_segments(const json::Place& place, Stage& stage) {
  auto next = stage.nodes.begin();
  for (const json::Place& segment : place.elements()) {
    const std::vector<json::Place> nodes = segment.elements();
    if (nodes.empty()) segment.fail("a segment has at least one node");
    for (const json::Place& node : nodes) {
      const bool is_first = &node == nodes.data();
      const auto found = std::ranges::find(stage.nodes, node.string());
      if (found == stage.nodes.end()) {
        node.fail(fmt::format("the stage has no node '{}'", node.string()));
      }
      if (found < next) {
        node.fail(fmt::format("node '{}' is in a segment twice, or before one that is listed first",
                              node.string()));
      }
      if (!is_first && found != next) {
        node.fail(fmt::format("node '{}' does not follow '{}', so they are no segment",
                              node.string(), *(next - 1)));
      }
      next = found + 1;
    }
    std::vector<std::string>& read = stage.segments.emplace_back();
    for (const json::Place& node : nodes) read.push_back(node.string());
  }
}

Stage read_stage(const json::Place& place, int64_t version, bool with_notes) {
  std::vector<std::string_view> keys{"nodes", "ranks", "recompute", "predicted", "notes"};
  if (version > 1) keys.insert(keys.end(), {"mesh", "factors", "sequence_parallel"});
  if (version > 3) keys.emplace_back("parameters");
  place.allow_only(keys);
  Stage stage;
  if (const auto mesh = place.find("mesh")) read_mesh(*mesh, place, stage);
  for (const json::Place& node : place.at("nodes").elements()) stage.nodes.push_back(node.string());
  for (const json::Place& rank : place.at("ranks").elements()) {
    stage.ranks.push_back(static_cast<Rank>(rank.integer(0, INT32_MAX)));
  }
  const auto recompute = place.find("recompute");
  if (recompute && version >= 3 && recompute->is_array()) {
    read_segments(*recompute, stage);
    if (!stage.segments.empty() && stage.axes != Axes{}) {
      recompute->fail("a stage with a mesh runs again as a whole: true or false");
    }
  } else if (recompute) {
    stage.recompute = recompute->boolean();
  }
  if (const auto parameters = place.find("parameters")) {
    const std::string how = parameters->string();
    if (how != "shared" && how != "whole") parameters->fail("expected \"shared\" or \"whole\"");
    stage.shares_parameters = how == "shared";
    if (stage.shares_parameters && stage.axes != Axes{}) {
      parameters->fail("a stage with a mesh does not share its parameters");
    }
  }
  if (const auto predicted = place.find("predicted")) stage.predicted = read_prediction(*predicted);
  stage.notes = read_notes(place, with_notes);
  return stage;
}

Schedule read_schedule(const json::Place& place) {
  try {
    return schedule_from_name(place.string());
  } catch (const ConfigError& error) {
    place.fail(error.what());
  }
}

}  // namespace

std::string to_json(const Plan& plan) {
  int version = 1;
  for (const Stage& stage : plan.stages) {
    const int needed = stage.shares_parameters   ? 4
                       : !stage.segments.empty() ? 3
                       : stage.axes != Axes{}    ? 2
                                                 : 1;
    version = std::max(version, needed);
  }
  std::string text = fmt::format("{{\"format\": \"rannc-plan\", \"version\": {}", version);
  if (!plan.feasible) {
    text += fmt::format(", \"feasible\": false,\n \"reason\": {}", json::quote(plan.reason));
    return text + notes_member(in_one_line(plan.notes), ",\n ") + "}\n";
  }
  text += fmt::format(
      ", \"feasible\": true, \"schedule\": \"{}\", \"interleave\": {}, \"micro_batches\": {}, "
      "\"iteration_ns\": {},\n \"stages\": [",
      name(plan.schedule), plan.interleave, plan.micro_batches, plan.iteration_ns);
  for (const Stage& stage : plan.stages) {
    text += fmt::format("{}\n  {{{}}}", &stage == plan.stages.data() ? "" : ",", text_of(stage));
  }
  return text + "]" + notes_member(notes_with_typed(plan), ",\n ") + "}\n";
}

std::string to_indented_json(const Plan& plan) {
  return nlohmann::ordered_json::parse(to_json(plan)).dump(1, ' ', /*ensure_ascii=*/true) + "\n";
}

Plan plan_from_json(std::string_view text, bool with_notes) {
  const json::Document document(text, "plan");
  const json::Place root = document.root();
  const int64_t version = root.expect_format("rannc-plan", 4);

  Plan plan;
  if (const auto feasible = root.find("feasible")) plan.feasible = feasible->boolean();
  if (!plan.feasible) {
    root.allow_only({"format", "version", "feasible", "reason", "notes"});
    plan.reason = root.at("reason").string();
    plan.notes = read_notes(root, with_notes);
    return plan;
  }

  root.allow_only({"format", "version", "feasible", "schedule", "interleave", "micro_batches",
                   "iteration_ns", "stages", "notes"});
  plan.schedule = read_schedule(root.at("schedule"));
  if (const auto interleave = root.find("interleave")) {
    plan.interleave = static_cast<int>(interleave->integer(1, INT32_MAX));
  }
  plan.micro_batches = root.at("micro_batches").integer(1, INT64_MAX);
  if (const auto time = root.find("iteration_ns")) plan.iteration_ns = time->integer(0, INT64_MAX);
  for (const json::Place& stage : root.at("stages").elements()) {
    plan.stages.push_back(read_stage(stage, version, with_notes));
  }
  if (plan.stages.empty()) root.at("stages").fail("a plan has at least one stage");
  const auto notes = find_notes(root);
  if (notes && with_notes) read_typed_notes(*notes, plan);
  return plan;
}

}  // namespace rannc::plan
