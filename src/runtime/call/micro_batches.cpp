#include "runtime/call/micro_batches.h"

#include <utility>

namespace rannc::runtime {

void MicroBatch::release(bool keep_pass) {
  MicroBatch left;
  left.rows = rows;  // sync_buffers still asks for both
  left.statistics = std::move(statistics);
  if (keep_pass) left.pass = std::move(pass);
  *this = std::move(left);
}

MicroBatches::MicroBatches(const RankPart& part, const Orders& orders) {
  const plan::Program& program = orders.program;
  for (size_t stage = 0; stage < part.stages.size(); ++stage) {
    const LocalStage& local = part.stages[stage];
    std::vector<MicroBatch>& batches = batches_.emplace_back();
    if (!local.stage) continue;
    batches.resize(program.split.micro_rows.size());
    for (size_t k = 0; k < batches.size(); ++k) {
      batches[k].rows = program.shares[stage][static_cast<size_t>(local.replica)][k].size();
      batches[k].inputs.resize(local.stage->inputs().size());
      batches[k].output_grads.resize(local.stage->outputs().size());
      batches[k].unsent = orders.sends[stage][k];
    }
  }
}

MicroBatch& MicroBatches::at(int stage, int micro_batch) {
  return of(stage)[static_cast<size_t>(micro_batch)];
}

std::vector<MicroBatch>& MicroBatches::of(int stage) {
  return batches_[static_cast<size_t>(stage)];
}

void MicroBatches::expect_gradients(const RankPart& part) {
  for (size_t stage = 0; stage < batches_.size(); ++stage) {
    for (MicroBatch& batch : batches_[stage]) {
      batch.output_grads.assign(part.stages[stage].stage->outputs().size(), {});
    }
  }
}

}  // namespace rannc::runtime
