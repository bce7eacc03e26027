#include "runtime/call/orders.h"

#include <algorithm>
#include <utility>

#include "runtime/call/tags.h"

namespace rannc::runtime {
namespace {

/// Lowered orders that are kept, by numbers of rows: a full batch and the last partial one, in
/// training and without; the rest is for free sizes.
/// tuned by: a bound on memory: two sizes of batches, in training and without, are four.
/// without it: with fewer, batches whose sizes take turns are lowered anew at every call; with
/// more, old orders take memory for nothing.
constexpr size_t kKeptOrders = 16;

}  // namespace

Orders::Orders(plan::Program lowered, const ir::Graph& graph, int rank)
    : program(std::move(lowered)) {
  check_tags(program, graph);
  const auto& actions = program.actions[static_cast<size_t>(rank)];
  const auto split =
      std::ranges::find(actions, plan::ActionKind::return_outputs, &plan::Action::kind);
  return_outputs = static_cast<size_t>(split - actions.begin());
  sends.assign(static_cast<size_t>(program.stages()),
               std::vector<int>(program.split.micro_rows.size()));
  for (const plan::Transfer& transfer : program.transfers) {
    if (transfer.from != rank || transfer.from_stage == plan::kUser) continue;
    ++sends[static_cast<size_t>(transfer.from_stage)][static_cast<size_t>(transfer.micro_batch)];
  }
  last_backward.assign(static_cast<size_t>(program.stages()), -1);
  completed_by.assign(program.reductions.size(), -1);
  for (const plan::Action& action : actions) {
    if (action.kind != plan::ActionKind::backward) continue;
    last_backward[static_cast<size_t>(action.stage)] = action.micro_batch;
    for (size_t index = 0; index < program.reductions.size(); ++index) {
      const bool adds = std::ranges::binary_search(program.reductions[index].stages, action.stage);
      if (adds) completed_by[index] = action.stage;
    }
  }
  rows = program.split.local_rows[static_cast<size_t>(rank)];
  global_rows = program.split.global_rows();
}

OrdersCache::OrdersCache(const plan::Plan& plan, const ir::Graph& graph, int rank,
                         plan::Outputs outputs, int64_t bucket_bytes,
                         plan::ParameterHolders holders,
                         std::optional<std::vector<std::vector<std::string>>> shards)
    : plan_(plan),
      graph_(graph),
      rank_(rank),
      outputs_(outputs),
      holders_(std::move(holders)),
      shards_(std::move(shards)) {
  plan_.bucket_bytes = bucket_bytes;
}

plan::Program OrdersCache::lower(const std::vector<int64_t>& local_rows, bool training) const {
  plan::Program program = plan::lower(plan_, graph_, local_rows, training, outputs_, holders_);
  if (!shards_) return program;
  // Another capture may have other parameters, or the same in another order.
  for (size_t index = 0; index < program.buckets.size(); ++index) {
    for (plan::Bucket& bucket : program.buckets[index]) {
      std::vector<std::string> names;
      for (size_t parameter : bucket.parameters) {
        names.push_back(graph_[program.reductions[index].parameters[parameter]].name);
      }
      bucket.sharded = bucket.sharded && std::ranges::find(*shards_, names) != shards_->end();
    }
  }
  return program;
}

std::shared_ptr<const Orders> OrdersCache::get(const std::vector<int64_t>& local_rows,
                                               bool training) {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.training == training && entry.local_rows == local_rows;
  });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    auto orders = std::make_shared<Orders>(lower(local_rows, training), graph_, rank_);
    entries_.push_front({local_rows, training, std::move(orders)});
    if (entries_.size() > kKeptOrders) entries_.pop_back();
  }
  return entries_.front().orders;
}

}  // namespace rannc::runtime
