#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "plan/show/show_order.h"
#include "plan/verify/program_checks.h"

namespace rannc::plan {
namespace {

using Key = std::tuple<CommunicationKind, int, int, Direction>;

Key key_of(const Communication& communication) {
  return {communication.kind, communication.index, communication.part, communication.direction};
}

/// Every parameter of a reduction is in one of its buckets, beside others of its dtype.
void check_buckets(const Program& program, const ir::Graph& graph) {
  if (program.buckets.size() != program.reductions.size()) {
    fail_program(fmt::format("{} reductions have buckets for {}", program.reductions.size(),
                             program.buckets.size()));
  }
  for (size_t index = 0; index < program.buckets.size(); ++index) {
    const std::vector<ir::ValueId>& parameters = program.reductions[index].parameters;
    std::vector<int> seen(parameters.size(), 0);
    for (const Bucket& bucket : program.buckets[index]) {
      if (bucket.parameters.empty()) {
        fail_program(fmt::format("a bucket of reduction {} is empty", index));
      }
      for (size_t parameter : bucket.parameters) {
        if (parameter >= parameters.size() || ++seen[parameter] > 1) {
          fail_program(fmt::format("the buckets of reduction {} hold parameter {} of {} twice",
                                   index, parameter, parameters.size()));
        }
        const ir::DType dtype = graph[parameters[parameter]].dtype;
        if (dtype != graph[parameters[bucket.parameters[0]]].dtype) {
          fail_program(fmt::format("a bucket of reduction {} mixes dtypes", index));
        }
      }
    }
    if (std::ranges::count(seen, 1) != static_cast<ptrdiff_t>(seen.size())) {
      fail_program(fmt::format("the buckets of reduction {} leave a parameter out", index));
    }
  }
}

/// What the rest of the Program says must be communicated; but for the statistics of the whole
/// batch, as it does not say which stage runs a node.
std::set<Key> expected(const Program& program) {
  std::set<Key> keys;
  const auto add = [&](const Communication& communication) { keys.insert(key_of(communication)); };
  for (int index = 0; index < static_cast<int>(program.transfers.size()); ++index) {
    add({.index = index});
    if (program.transfers[index].grad) add({.index = index, .direction = Direction::backward});
  }
  for (int index = 0; index < static_cast<int>(program.buckets.size()); ++index) {
    for (int bucket = 0; bucket < static_cast<int>(program.buckets[index].size()); ++bucket) {
      add({.kind = CommunicationKind::bucket, .index = index, .part = bucket});
    }
  }
  for (const std::vector<Action>& actions : program.actions) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::sync_buffers) {
        add({.kind = CommunicationKind::buffers, .index = action.stage});
      }
      if (action.kind == ActionKind::reduce_outputs && program.ranks() > 1) {
        add({.kind = CommunicationKind::outputs});
      }
    }
  }
  return keys;
}

void check_statistics(const Program& program, const ir::Graph& graph) {
  std::vector<std::set<int>> nodes(2);  // [direction]
  std::vector<int> stage_of(graph.nodes.size(), kUser);
  for (const Communication& communication : program.order) {
    if (communication.kind != CommunicationKind::statistics) continue;
    const auto [kind, stage, node, direction] = key_of(communication);
    if (node < 0 || node >= static_cast<int>(graph.nodes.size()) ||
        !graph.nodes[node].whole_batch) {
      fail_program(fmt::format("node {} has no statistics of the whole batch", node));
    }
    if (stage < 0 || stage >= program.stages() || program.stage_ranks[stage].size() < 2) {
      fail_program(fmt::format("the statistics of node {} are gathered in stage {}", node, stage));
    }
    if (program.split.micro_batches != 1) {
      fail_program(fmt::format("the whole batch of node {} is {} micro-batches", node,
                               program.split.micro_batches));
    }
    if (direction == Direction::backward && !program.training) {
      fail_program(fmt::format("node {} gathers backward without training", node));
    }
    if (!nodes[static_cast<size_t>(direction)].insert(node).second ||
        (stage_of[node] != kUser && stage_of[node] != stage)) {
      fail_program(fmt::format("the statistics of node {} are gathered twice", node));
    }
    stage_of[node] = stage;
  }
  if (!std::ranges::includes(nodes[0], nodes[1])) {
    fail_program("statistics are gathered backward, but not forward");
  }
  for (int node : nodes[0]) {
    const ir::NodeId id{static_cast<uint32_t>(node)};
    const bool goes_on = program.training && graph[graph.operands(id).front()].requires_grad;
    if (goes_on != nodes[1].contains(node)) {
      fail_program(fmt::format("the statistics of node {} are {}gathered backward", node,
                               goes_on ? "not " : ""));
    }
  }
  const bool all_replicated = std::ranges::all_of(
      program.stage_ranks, [](const std::vector<Rank>& ranks) { return ranks.size() > 1; });
  for (size_t node = 0; node < graph.nodes.size() && all_replicated; ++node) {
    if (graph.nodes[node].whole_batch && !nodes[0].contains(static_cast<int>(node))) {
      fail_program(fmt::format("the statistics of node {} are never gathered", node));
    }
  }
}

void check_order(const Program& program, const ir::Graph& graph) {
  std::set<Key> missing = expected(program);
  for (const Communication& communication : program.order) {
    if (communication.kind == CommunicationKind::statistics) continue;
    if (missing.erase(key_of(communication)) == 0) {
      fail_program(
          fmt::format("a communication of kind {}, index {}, is in the order twice, or "
                      "is none of its own",
                      static_cast<int>(communication.kind), communication.index));
    }
  }
  if (!missing.empty()) {
    const auto& [kind, index, part, direction] = *missing.begin();
    fail_program(fmt::format("no place in the order is for the {}",
                             describe(program, {kind, index, part, direction})));
  }
  check_statistics(program, graph);
}

void check_issues(const Program& program) {
  if (program.issues.size() != program.actions.size()) {
    fail_program(fmt::format("{} of {} ranks issue communication", program.issues.size(),
                             program.actions.size()));
  }
  std::vector<std::vector<int>> expected(program.actions.size());
  for (int place = 0; place < static_cast<int>(program.order.size()); ++place) {
    for (Rank rank : ranks_of(program, program.order[place])) expected[rank].push_back(place);
  }
  for (Rank rank = 0; rank < program.ranks(); ++rank) {
    const auto& actions = program.actions[rank];
    std::vector<int> places;
    int at = 0;  // twice the action; one more inside of it
    for (const Issue& issue : program.issues[rank]) {
      const bool exists = issue.action >= 0 && issue.action <= static_cast<int>(actions.size());
      const auto computes = [&] {
        const bool last = issue.action == static_cast<int>(actions.size());
        return !last && (actions[issue.action].kind == ActionKind::forward ||
                         actions[issue.action].kind == ActionKind::backward);
      };
      if (!exists || (issue.inside && !computes()) ||
          2 * issue.action + static_cast<int>(issue.inside) < at) {
        fail_program(fmt::format("rank {} issues place {} of the order {} action {}", rank,
                                 issue.place, issue.inside ? "inside" : "before", issue.action));
      }
      at = 2 * issue.action + static_cast<int>(issue.inside);
      places.push_back(issue.place);
    }
    std::ranges::sort(places);
    if (places == expected[rank]) continue;
    fail_program(fmt::format("rank {} issues {} communications, not the {} of its own, each once",
                             rank, places.size(), expected[rank].size()));
  }
}

}  // namespace

std::vector<Rank> ranks_of(const Program& program, const Communication& communication) {
  switch (communication.kind) {
    case CommunicationKind::transfer: {
      const Transfer& transfer = program.transfers[communication.index];
      if (transfer.from == transfer.to) return {transfer.from};
      return {transfer.from, transfer.to};
    }
    case CommunicationKind::statistics:
    case CommunicationKind::buffers:
      return program.stage_ranks[communication.index];
    case CommunicationKind::bucket:
      return program.reductions[communication.index].ranks;
    case CommunicationKind::outputs:
      break;
  }
  std::vector<Rank> all;
  for (Rank rank = 0; rank < program.ranks(); ++rank) all.push_back(rank);
  return all;
}

void check_communications(const Program& program, const ir::Graph& graph) {
  check_buckets(program, graph);
  check_order(program, graph);
  check_issues(program);
}

}  // namespace rannc::plan
