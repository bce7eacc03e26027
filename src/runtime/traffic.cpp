#include "runtime/traffic.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "rannc/plan/buckets.h"
#include "rannc/plan/mesh.h"
#include "runtime/stage/sync_batch_norm.h"

namespace rannc::runtime {
namespace {

using Sum = comm::Traffic::Sum;

void add_new(std::vector<int64_t>& known, const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) {
    if (size > 0 && std::ranges::find(known, size) == known.end()) known.push_back(size);
  }
}

void add(std::vector<Sum>& sums, std::vector<int> ranks, const std::vector<int64_t>& bytes,
         const std::vector<int64_t>& sharded = {}) {
  if (ranks.size() < 2) return;
  std::ranges::sort(ranks);
  auto known = std::ranges::find(sums, ranks, &Sum::ranks);
  if (known == sums.end()) known = sums.insert(sums.end(), Sum{std::move(ranks), {}, {}});
  add_new(known->bytes, bytes);
  add_new(known->sharded, sharded);
}

/// Statistics of the whole batch that the replicas of a stage gather.
std::vector<int64_t> gathered_bytes(const plan::Stage& stage, const ir::Graph& graph) {
  std::vector<int64_t> bytes;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    if (!node.whole_batch || std::ranges::find(stage.nodes, node.name) == stage.nodes.end()) {
      continue;
    }
    for (const bool forward : {true, false}) {
      bytes.push_back(statistics_size(channels_of(graph, ir::NodeId{index}), forward) *
                      mesh_of(stage).replicas() * static_cast<int64_t>(sizeof(double)));
    }
  }
  return bytes;
}

}  // namespace

comm::Traffic traffic_of(const plan::Plan& plan, const ir::Graph& graph, int ranks,
                         const std::vector<ir::ValueId>& outputs, bool trains,
                         plan::Outputs returned, const plan::ParameterHolders& holders,
                         bool float32_sums) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto ranks_of = [&](int stage) -> const std::vector<int>& {
    return stage == plan::kUser ? all : plan.stages[static_cast<size_t>(stage)].ranks;
  };
  std::set<std::pair<int, int>> pairs;
  for (const plan::Crossing& crossing : plan::crossings(plan, graph, outputs)) {
    for (int from : ranks_of(crossing.from_stage)) {
      for (int to : ranks_of(crossing.to_stage)) {
        if (from != to) pairs.insert({from, to});
      }
    }
  }
  comm::Traffic traffic;
  traffic.messages.assign(pairs.begin(), pairs.end());
  add(traffic.sums, all, {sizeof(double)});  // numbers of the whole batch, scalar outputs
  for (const plan::Stage& stage : plan.stages) {
    add(traffic.sums, stage.ranks, {}, gathered_bytes(stage, graph));
  }
  if (!trains) return traffic;
  // Which gradients are summed by whom, and in which buckets, is the same for any rows.
  const std::vector<int64_t> rows(static_cast<size_t>(ranks),
                                  int64_t{2} * plan.micro_batches * ranks);
  const plan::Program program = plan::lower(plan, graph, rows, true, returned, holders);
  for (size_t index = 0; index < program.reductions.size(); ++index) {
    std::vector<int64_t> bytes, sharded;
    const plan::Reduction& reduction = program.reductions[index];
    const size_t among = reduction.ranks.size();
    for (const plan::Bucket& bucket : program.buckets[index]) {
      const ir::DType dtype = graph[reduction.parameters[bucket.parameters.front()]].dtype;
      const int64_t longer = float32_sums && ir::size_bytes(dtype) == 2 ? 2 : 1;
      bytes.push_back(longer * bucket.bytes);
      if (!bucket.sharded) continue;
      sharded.push_back(longer * plan::shard_bytes(bucket, dtype, among) *
                        static_cast<int64_t>(among));
    }
    bytes.push_back(static_cast<int64_t>(reduction.parameters.size() * sizeof(int64_t)));  // counts
    add(traffic.sums, reduction.ranks, bytes, sharded);
  }
  return traffic;
}

comm::Traffic of_all_places(const comm::Traffic& plane, int ranks, int places,
                            int64_t group_bytes) {
  comm::Traffic traffic;
  for (int place = 0; place < places; ++place) {
    for (const auto& [from, to] : plane.messages) {
      traffic.messages.emplace_back(from * places + place, to * places + place);
    }
    for (const Sum& sum : plane.sums) {
      std::vector<int> of_place;
      for (const int group : sum.ranks) of_place.push_back(group * places + place);
      add(traffic.sums, std::move(of_place), sum.bytes, sum.sharded);
    }
  }
  // What a group exchanges has as many bytes as its rows want: a short one and a long one.
  const int64_t equal_parts = std::max<int64_t>(group_bytes / (8 * places), 1) * 8 * places;
  for (int first = 0; first < ranks; first += places) {
    std::vector<int> group(static_cast<size_t>(places));
    std::iota(group.begin(), group.end(), first);
    add(traffic.sums, std::move(group), {sizeof(double), equal_parts},
        {static_cast<int64_t>(sizeof(double)) * places, equal_parts});
  }
  return traffic;
}

}  // namespace rannc::runtime
