#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rannc/plan/program.h"
#include "rannc/util/json.h"

namespace rannc::plan {
namespace {

std::string_view name(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::send:
      return "send";
    case ActionKind::receive:
      return "receive";
    case ActionKind::sync_buffers:
      return "sync_buffers";
    case ActionKind::reduce_outputs:
      return "reduce_outputs";
    case ActionKind::return_outputs:
      return "return_outputs";
    case ActionKind::reduce_gradients:
      return "reduce_gradients";
    case ActionKind::release:
      return "release";
  }
  return "";
}

/// Only what the kind of action needs: ["forward", stage, micro-batch], ["send", transfer,
/// "forward"].
std::string text_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::release:
      return fmt::format("[\"{}\", {}, {}]", name(action.kind), action.stage, action.micro_batch);
    case ActionKind::send:
    case ActionKind::receive:
      return fmt::format("[\"{}\", {}, \"{}\"]", name(action.kind), action.index,
                         action.direction == Direction::forward ? "forward" : "backward");
    case ActionKind::sync_buffers:
      return fmt::format("[\"{}\", {}]", name(action.kind), action.stage);
    case ActionKind::reduce_gradients:
      return fmt::format("[\"{}\", {}]", name(action.kind), action.index);
    default:
      return fmt::format("[\"{}\"]", name(action.kind));
  }
}

std::string text_of(RowRange range) { return fmt::format("[{}, {}]", range.begin, range.end); }

std::string text_of(const Transfer& transfer) {
  return fmt::format(
      "{{\"value\": {}, \"from_stage\": {}, \"to_stage\": {}, \"micro_batch\": {}, \"from\": {}, "
      "\"to\": {}, \"source\": {}, \"target\": {}, \"whole\": {}, \"weight\": {}, \"grad\": {}}}",
      transfer.value.index, transfer.from_stage, transfer.to_stage, transfer.micro_batch,
      transfer.from, transfer.to, text_of(transfer.source), text_of(transfer.target),
      transfer.whole, json::number_text(transfer.weight), transfer.grad);
}

std::string text_of(const Reduction& reduction) {
  std::vector<uint32_t> parameters;
  for (ir::ValueId parameter : reduction.parameters) parameters.push_back(parameter.index);
  return fmt::format("{{\"parameters\": [{}], \"ranks\": [{}], \"stages\": [{}]}}",
                     fmt::join(parameters, ", "), fmt::join(reduction.ranks, ", "),
                     fmt::join(reduction.stages, ", "));
}

/// ["transfer", transfer, "forward"], ["bucket", reduction, which of it], ...
std::string text_of(const Communication& communication) {
  const std::string_view direction =
      communication.direction == Direction::forward ? "forward" : "backward";
  switch (communication.kind) {
    case CommunicationKind::transfer:
      return fmt::format("[\"transfer\", {}, \"{}\"]", communication.index, direction);
    case CommunicationKind::statistics:
      return fmt::format("[\"statistics\", {}, {}, \"{}\"]", communication.index,
                         communication.part, direction);
    case CommunicationKind::buffers:
      return fmt::format("[\"buffers\", {}]", communication.index);
    case CommunicationKind::outputs:
      return "[\"outputs\"]";
    case CommunicationKind::bucket:
      return fmt::format("[\"bucket\", {}, {}]", communication.index, communication.part);
  }
  return "";
}

/// [place, action], [place, action, "inside"]
std::string text_of(const Issue& issue) {
  return fmt::format("[{}, {}{}]", issue.place, issue.action, issue.inside ? ", \"inside\"" : "");
}

template <class Items, class Write>
std::string list(const Items& items, std::string_view separator, Write write) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ",";
    text += separator;
    text += write(item);
  }
  return text + "]";
}

}  // namespace

std::string to_json(const Program& program) {
  const auto write_ranges = [](const std::vector<RowRange>& ranges) {
    return list(ranges, "", [](RowRange range) { return text_of(range); });
  };
  const auto write_shares = [&](const std::vector<std::vector<RowRange>>& shares) {
    return list(shares, "", write_ranges);
  };
  const auto write_ranks = [](const std::vector<Rank>& ranks) {
    return fmt::format("[{}]", fmt::join(ranks, ", "));
  };
  const auto write_actions = [](const std::vector<Action>& actions) {
    return list(actions, "\n   ", [](const Action& action) { return text_of(action); });
  };
  const auto write_buckets = [](const std::vector<Bucket>& buckets) {
    return list(buckets, "", [](const Bucket& bucket) {
      return fmt::format("[{}{}]", bucket.sharded ? "\"sharded\", " : "",
                         fmt::join(bucket.parameters, ", "));
    });
  };
  const auto write_issues = [](const std::vector<Issue>& issues) {
    return list(issues, "", [](const Issue& issue) { return text_of(issue); });
  };
  return fmt::format(
      "{{\"format\": \"rannc-program\", \"version\": 1, \"schedule\": \"{}\", \"training\": {},\n"
      " \"outputs\": {}, \"local_rows\": [{}], \"micro_batches\": {},\n \"slices\": {},\n "
      "\"stage_ranks\": {},\n"
      " \"shares\": {},\n \"transfers\": {},\n \"reductions\": {},\n \"buckets\": {},\n "
      "\"actions\": {},\n \"order\": {},\n \"issues\": {}}}\n",
      name(program.schedule), program.training,
      list(program.outputs, "", [](ir::ValueId value) { return std::to_string(value.index); }),
      fmt::join(program.split.local_rows, ", "), program.split.micro_batches,
      list(program.split.slices, "\n  ", write_ranges), list(program.stage_ranks, "", write_ranks),
      list(program.shares, "\n  ", write_shares),
      list(program.transfers, "\n  ", [](const Transfer& transfer) { return text_of(transfer); }),
      list(program.reductions, "\n  ", [](const Reduction& one) { return text_of(one); }),
      list(program.buckets, "\n  ", write_buckets), list(program.actions, "\n  ", write_actions),
      list(program.order, "\n  ", [](const Communication& one) { return text_of(one); }),
      list(program.issues, "\n  ", write_issues));
}

}  // namespace rannc::plan
