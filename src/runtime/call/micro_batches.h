#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/call/orders.h"
#include "runtime/call/rank_part.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {

/// This rank's share of one micro-batch in one stage, from its first received row to its release.
struct MicroBatch {
  int64_t rows = 0;
  std::vector<Assembly> inputs;         ///< [stage input]; until the forward pass
  std::vector<at::Tensor> outputs;      ///< [stage output]; until the last one is sent
  int unsent = 0;                       ///< messages that will carry outputs away
  StagePass pass;                       ///< from forward to backward
  std::vector<at::Tensor> statistics;   ///< copies that its forward updated; until joined
  std::vector<Assembly> output_grads;   ///< [stage output]; until the backward pass
  std::vector<at::Tensor> input_grads;  ///< [stage input]; until released

  /// Frees what its backward has left. `keep_pass`: that backward may be repeated.
  void release(bool keep_pass);
};

/// The micro-batches of a call in all stages of this rank.
class MicroBatches {
 public:
  MicroBatches(const RankPart& part, const Orders& orders);

  [[nodiscard]] MicroBatch& at(int stage, int micro_batch);
  /// [micro-batch]
  [[nodiscard]] std::vector<MicroBatch>& of(int stage);

  /// Makes room for the gradients of outputs, which an earlier backward has used up.
  void expect_gradients(const RankPart& part);
  void clear() { batches_.clear(); }

 private:
  std::vector<std::vector<MicroBatch>> batches_;  // [stage][k]; empty for stages of other ranks
};

}  // namespace rannc::runtime
