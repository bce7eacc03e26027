#include "plan/typed_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "rannc/plan/buckets.h"

namespace rannc::plan {
namespace {

// In the order of the file. Of those that are for show only what may follow a field is listed.
constexpr std::string_view kOrder[] = {"global_batch",
                                       "memory_limit_bytes",
                                       "hosts",
                                       "parts",
                                       "transfers",
                                       "alternatives",
                                       "fingerprint",
                                       "world",
                                       "step_ns",
                                       "step_idle_ns",
                                       "step_bubble_ns",
                                       "bucket_bytes",
                                       "step_peak_bytes",
                                       "step_from_operators_ns",
                                       "tried_micro_batches",
                                       "tried_shapes",
                                       "shard_optimizer"};

/// Keys and values as text.
using Members = std::vector<std::pair<std::string_view, std::string>>;

Members typed(const Plan& plan) {
  Members members;
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) members.emplace_back(key, std::to_string(*value));
  };
  const auto add_list = [&](std::string_view key, const std::vector<int64_t>& values) {
    if (!values.empty()) members.emplace_back(key, fmt::format("[{}]", fmt::join(values, ",")));
  };
  add("global_batch", plan.made_for.global_batch);
  if (!plan.made_for.fingerprint.empty()) {
    members.emplace_back("fingerprint", json::quote(plan.made_for.fingerprint));
  }
  add("world", plan.made_for.world);
  add("step_ns", plan.step.ns);
  add_list("step_idle_ns", plan.step.idle_ns);
  add_list("step_bubble_ns", plan.step.bubble_ns);
  add("bucket_bytes", plan.bucket_bytes);
  add_list("step_peak_bytes", plan.step.peak_bytes);
  add("step_from_operators_ns", plan.step.from_operators_ns);
  if (plan.shard_optimizer) members.emplace_back("shard_optimizer", "true");
  return members;
}

/// Place of a key in the file's order; -1: it has none.
int64_t place_of(std::string_view key) {
  const auto* const found = std::ranges::find(kOrder, key);
  return found == std::end(kOrder) ? -1 : found - std::begin(kOrder);
}

std::string text_of(const Members& members) {
  std::string text;
  for (const auto& [key, value] : members) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json::quote(key), value);
  }
  return "{" + text + "}";
}

std::vector<int64_t> integers(const json::Place& list) {
  std::vector<int64_t> values;
  for (const json::Place& value : list.elements()) values.push_back(value.integer(0, INT64_MAX));
  return values;
}

/// Whether `key` is a field of `plan`, which then has the value.
bool read_field(std::string_view key, const json::Place& value, Plan& plan) {
  if (key == "global_batch") {
    plan.made_for.global_batch = value.integer(1, INT64_MAX);
  } else if (key == "fingerprint") {
    plan.made_for.fingerprint = value.string();
  } else if (key == "world") {
    plan.made_for.world = static_cast<int>(value.integer(1, INT32_MAX));
  } else if (key == "step_ns") {
    plan.step.ns = value.integer(0, INT64_MAX);
  } else if (key == "step_idle_ns") {
    plan.step.idle_ns = integers(value);
  } else if (key == "step_bubble_ns") {
    plan.step.bubble_ns = integers(value);
  } else if (key == "bucket_bytes") {
    plan.bucket_bytes = value.integer(kLeastBucketBytes, INT64_MAX);
  } else if (key == "step_peak_bytes") {
    plan.step.peak_bytes = integers(value);
    if (plan.step.peak_bytes.size() != plan.stages.size()) {
      value.fail(fmt::format("has {} numbers, but the plan has {} stages",
                             plan.step.peak_bytes.size(), plan.stages.size()));
    }
  } else if (key == "step_from_operators_ns") {
    plan.step.from_operators_ns = value.integer(0, INT64_MAX);
  } else if (key == "shard_optimizer") {
    plan.shard_optimizer = value.boolean();
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string notes_with_typed(const Plan& plan) {
  Members fields = typed(plan);
  if (fields.empty() && plan.notes.empty()) return "";
  // Each field stands before the first note that follows it in the file's order.
  Members all;
  auto next = fields.begin();
  const auto add_before = [&](int64_t place) {
    for (; next != fields.end() && place_of(next->first) < place; ++next) all.push_back(*next);
  };
  std::optional<json::Document> document;
  if (!plan.notes.empty()) {
    document.emplace(plan.notes, "notes of the plan");
    if (!document->root().is_object()) document->root().fail("notes must be an object");
    for (const json::Place& member : document->root().members()) {
      add_before(place_of(member.key()));
      all.emplace_back(member.key(), member.dump());
    }
  }
  add_before(std::ssize(kOrder));
  return text_of(all);
}

void read_typed_notes(const json::Place& notes, Plan& plan) {
  Members rest;
  const std::vector<json::Place> members = notes.members();
  for (const json::Place& member : members) {
    if (!read_field(member.key(), member, plan)) rest.emplace_back(member.key(), member.dump());
  }
  if (!rest.empty() || members.empty()) plan.notes = text_of(rest);
}

}  // namespace rannc::plan
