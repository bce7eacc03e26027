#include "runtime/stage/running_statistics.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

/// A write that would leave the replicas of a stage with different buffers.
void refuse_other_writes(const ir::Graph& stage, const std::vector<ir::RunningStatistic>& known,
                         int replicas) {
  const std::vector<bool> row_dependent = ir::depends_on_rows(stage);
  for (uint32_t index = 0; index < stage.nodes.size(); ++index) {
    if (!row_dependent[index]) continue;
    for (ir::ValueId written : stage.nodes[index].writes) {
      const ir::ValueId storage = stage[written].storage;
      const bool handled = std::ranges::any_of(known, [&](const ir::RunningStatistic& statistic) {
        return statistic.buffer == storage && statistic.node.index == index;
      });
      if (stage[storage].kind != ir::ValueKind::buffer || handled) continue;
      throw PlanError(c10::str(
          "node '", stage.nodes[index].name, "' of module '", stage.nodes[index].module,
          "' writes to buffer '", stage[storage].name, "' what depends on the rows of the batch, ",
          "but its stage has ", replicas, " replicas, which would end up with different buffers.\n",
          "  Give that stage one replica, for example with Config(replica_nums=[1])."));
    }
  }
}

}  // namespace

RunningStatistics::RunningStatistics(const ir::Graph& stage,
                                     const std::vector<std::string>& state_names, int replicas)
    : replicas_(replicas) {
  const std::vector<ir::RunningStatistic> statistics = ir::running_statistics(stage);
  if (replicas > 1) refuse_other_writes(stage, statistics, replicas);
  for (const ir::RunningStatistic& statistic : statistics) {
    if (replicas == 1 && !statistic.of_each_row) continue;
    const auto name = std::ranges::find(state_names, stage[statistic.buffer].name);
    RANNC_CHECK(name != state_names.end(), stage[statistic.buffer].name);
    const auto index = static_cast<size_t>(name - state_names.begin());
    auto buffer = std::ranges::find(buffers_, index, &Buffer::index);
    if (buffer == buffers_.end()) {
      buffer = buffers_.insert(buffers_.end(), {index, 1, statistic.of_each_row});
    }
    buffer->decay *= 1 - statistic.momentum;
  }
}

std::vector<at::Tensor> RunningStatistics::lend(std::vector<at::Tensor>& state) const {
  std::vector<at::Tensor> lent;
  for (const Buffer& buffer : buffers_) {
    state[buffer.index] = state[buffer.index].clone();
    lent.push_back(state[buffer.index]);
  }
  return lent;
}

/// [micro-batch] the copies, one after the other, times this replica's weight.
at::Tensor RunningStatistics::weighted(const Updates& updates,
                                       const std::vector<at::Tensor>& state) const {
  int64_t width = 0;
  for (const Buffer& buffer : buffers_) width += state[buffer.index].numel();
  const auto micro_batches = static_cast<int64_t>(updates.copies.size());
  const at::TensorOptions wide = state[buffers_[0].index].options().dtype(at::kDouble);
  at::Tensor sums = at::zeros({micro_batches, width}, wide);
  for (int64_t k = 0; k < micro_batches; ++k) {
    int64_t begin = 0;
    for (const at::Tensor& buffer : updates.copies[k]) {
      sums[k].narrow(0, begin, buffer.numel()).copy_(buffer.flatten()).mul_(updates.weights[k]);
      begin += buffer.numel();
    }
  }
  return sums;
}

RunningStatistics::Sums RunningStatistics::start(const Updates& updates,
                                                 const std::vector<at::Tensor>& state,
                                                 comm::Communicator& comm, comm::Stream& stream,
                                                 std::span<const int> ranks,
                                                 comm::Purpose purpose) const {
  const at::Tensor sums = weighted(updates, state);
  return {sums, updates.parts,
          comm.start_sum(memory_of(sums, stream), comm::Element::float64, ranks, purpose,
                         std::make_shared<at::Tensor>(sums))};
}

void RunningStatistics::finish(const Sums& started, const std::vector<at::Tensor>& state,
                               comm::Stream& stream) const {
  stream.wait(*started.handle);
  write(started.of_micro_batches, started.parts, state);
}

void RunningStatistics::finish(const Updates& updates, const std::vector<at::Tensor>& state) const {
  write(weighted(updates, state), updates.parts, state);
}

void RunningStatistics::write(const at::Tensor& sums, const std::vector<double>& parts,
                              const std::vector<at::Tensor>& state) const {
  const int64_t micro_batches = sums.size(0);
  int64_t begin = 0;
  for (const Buffer& buffer : buffers_) {
    // Without autograd's version counter: batch_norm itself does not count its updates either.
    const at::Tensor target = state[buffer.index].variable_data();
    const at::Tensor before = target.flatten().to(at::kDouble).clone();
    at::Tensor after = before;
    for (int64_t k = 0; k < micro_batches; ++k) {
      const at::Tensor updated = sums[k].narrow(0, begin, target.numel());
      after = buffer.of_each_row ? after.add(updated.sub(before), parts[k])
                                 : updated.add(after.sub(before), buffer.decay);
    }
    target.copy_(after.view(target.sizes()));
    begin += target.numel();
  }
}

}  // namespace rannc::runtime
