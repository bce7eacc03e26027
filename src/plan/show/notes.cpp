#include "plan/show/notes.h"

#include <fmt/format.h>

#include <climits>

#include "rannc/util/json.h"

namespace rannc::plan {
namespace {

using json::Place;

std::optional<double> number(const Place& notes, std::string_view key) {
  const auto found = notes.find(key);
  return found ? std::optional(found->number()) : std::nullopt;
}

std::string text(const Place& notes, std::string_view key) {
  const auto found = notes.find(key);
  return found ? found->string() : std::string();
}

PartsNote read_parts(const Place& place, size_t stages) {
  return {.slowest_stage = static_cast<int>(
              place.at("slowest_stage").integer(0, static_cast<int64_t>(stages) - 1)),
          .compute_ns = place.at("compute_ns").number(),
          .bubble_ns = place.at("bubble_ns").number(),
          .transfer_ns = place.at("transfer_ns").number(),
          .reduction_ns = place.at("reduction_ns").number()};
}

TransferNote read_transfer(const Place& place, size_t stages) {
  const auto last = static_cast<int64_t>(stages) - 1;
  TransferNote note;
  note.from = static_cast<int>(place.at("from").integer(0, last));
  note.to = static_cast<int>(place.at("to").integer(note.from + 1, last));
  note.forward_ns = place.at("forward_ns").number();
  note.backward_ns = place.at("backward_ns").number();
  note.bytes = place.at("bytes").number();
  if (const auto grad = place.find("grad")) note.grad = grad->boolean();
  return note;
}

std::vector<int64_t> read_replicas(const Place& place) {
  std::vector<int64_t> replicas;
  for (const Place& count : place.at("replicas").elements()) {
    replicas.push_back(count.integer(1, INT_MAX));
  }
  return replicas;
}

AlternativeNote read_alternative(const Place& place) {
  AlternativeNote note{.kind = place.at("kind").string(),
                       .schedule = place.at("schedule").string(),
                       .why = place.at("why").string(),
                       .micro_batches = place.at("micro_batches").integer(1, INT64_MAX),
                       .replicas = {},
                       .iteration_ns = place.at("iteration_ns").number(),
                       .peak_bytes = place.at("peak_bytes").number()};
  note.replicas = read_replicas(place);
  return note;
}

GroupNote read_group(const Place& place) {
  GroupNote note;
  note.parameter_bytes = place.at("parameter_bytes").number();
  note.cut_bytes = place.at("cut_bytes").number();
  note.collective_bytes = place.at("collective_bytes").number();
  if (const auto ns = place.find("collective_ns")) note.collective_ns = ns->number();
  for (const Place& reason : place.at("whole").elements()) note.whole.push_back(reason.string());
  note.more_whole = place.at("more_whole").integer(0, INT64_MAX);
  return note;
}

}  // namespace

PlanNotes read_notes(const Plan& plan) {
  PlanNotes notes;
  if (plan.notes.empty()) return notes;
  const json::Document document(plan.notes, "plan", {}, "$.notes");
  const Place root = document.root();
  notes.search = text(root, "search");
  notes.nodes = number(root, "nodes");
  notes.blocks = number(root, "blocks");
  notes.examined = number(root, "examined");
  notes.bound_ns = number(root, "bound_ns");
  notes.gap = number(root, "gap");
  notes.memory_limit_bytes = number(root, "memory_limit_bytes");
  notes.devices_per_host = number(root, "devices_per_host");
  if (const auto found = root.find("hosts")) notes.hosts = found->integer(1, INT_MAX);
  if (const auto found = root.find("host_of_rank")) {
    for (const Place& place : found->elements()) {
      notes.host_of_rank.push_back(static_cast<int>(place.integer(0, INT_MAX)));
    }
  }
  if (const auto found = root.find("parts")) notes.parts = read_parts(*found, plan.stages.size());
  if (const auto found = root.find("transfers")) {
    notes.transfers.emplace();
    for (const Place& place : found->elements()) {
      notes.transfers->push_back(read_transfer(place, plan.stages.size()));
    }
  }
  if (const auto found = root.find("alternatives")) {
    for (const Place& place : found->elements()) {
      notes.alternatives.push_back(read_alternative(place));
    }
  }
  if (const auto found = root.find("tried_shapes")) {
    for (const Place& place : found->elements()) {
      notes.tried_shapes.push_back(
          {.replicas = read_replicas(place),
           .schedule = place.at("schedule").string(),
           .interleave = place.at("interleave").integer(1, INT_MAX),
           .micro_batches = place.at("micro_batches").integer(1, INT64_MAX),
           .run_ns = place.at("run_ns").number()});
    }
  }
  if (const auto found = root.find("tried_micro_batches")) {
    for (const Place& place : found->elements()) {
      notes.tried_micro_batches.push_back(
          {.micro_batches = place.at("micro_batches").integer(1, INT64_MAX),
           .run_ns = place.at("run_ns").number()});
    }
  }
  return notes;
}

StageNotes read_stage_notes(const Plan& plan, size_t stage) {
  StageNotes notes;
  if (plan.stages[stage].notes.empty()) return notes;
  const json::Document document(plan.stages[stage].notes, "plan", {},
                                fmt::format("$.stages[{}].notes", stage));
  const Place root = document.root();
  if (const auto found = root.find("modules")) notes.modules = found->string();
  notes.in_bytes = number(root, "in_bytes");
  notes.out_bytes = number(root, "out_bytes");
  notes.send_bytes = number(root, "send_bytes");
  notes.graph_input_bytes = number(root, "graph_input_bytes");
  if (const auto group = root.find("group")) notes.group = read_group(*group);
  return notes;
}

}  // namespace rannc::plan
