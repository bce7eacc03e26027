#include "runtime/traffic.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace rannc::runtime {
namespace {

using Sum = comm::Traffic::Sum;

void add(std::vector<Sum>& sums, std::vector<int> ranks, const std::vector<int64_t>& bytes) {
  if (ranks.size() < 2) return;
  std::ranges::sort(ranks);
  auto known = std::ranges::find(sums, ranks, &Sum::ranks);
  if (known == sums.end()) known = sums.insert(sums.end(), Sum{std::move(ranks), {}});
  for (int64_t size : bytes) {
    const bool is_new = std::ranges::find(known->bytes, size) == known->bytes.end();
    if (is_new && size > 0) known->bytes.push_back(size);
  }
}

}  // namespace

comm::Traffic traffic_of(const plan::Plan& plan, const ir::Graph& graph, int ranks,
                         const std::vector<ir::ValueId>& outputs, bool trains,
                         plan::Outputs returned, const plan::ParameterHolders& holders) {
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
  for (const plan::Stage& stage : plan.stages) add(traffic.sums, stage.ranks, {});
  if (!trains) return traffic;
  // Which gradients are summed by whom, and in which buckets, is the same for any rows.
  const std::vector<int64_t> rows(static_cast<size_t>(ranks),
                                  int64_t{2} * plan.micro_batches * ranks);
  const plan::Program program = plan::lower(plan, graph, rows, true, returned, holders);
  for (size_t index = 0; index < program.reductions.size(); ++index) {
    std::vector<int64_t> bytes;
    for (const plan::Bucket& bucket : program.buckets[index]) bytes.push_back(bucket.bytes);
    add(traffic.sums, program.reductions[index].ranks, bytes);
  }
  return traffic;
}

}  // namespace rannc::runtime
