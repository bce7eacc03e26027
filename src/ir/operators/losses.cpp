#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> losses() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"binary_cross_entropy", F::pointwise_loss},
      {"binary_cross_entropy_with_logits", F::pointwise_loss},
      {"hinge_embedding_loss", F::pointwise_loss},
      {"huber_loss", F::pointwise_loss},
      {"kl_div", F::pointwise_loss},
      {"l1_loss", F::pointwise_loss},
      {"margin_ranking_loss", F::pointwise_loss},
      {"mse_loss", F::pointwise_loss, losses},
      {"poisson_nll_loss", F::pointwise_loss},
      {"smooth_l1_loss", F::pointwise_loss},
      {"soft_margin_loss", F::pointwise_loss},

      {"cross_entropy_loss", F::class_loss, cross_entropy},
      {"nll_loss", F::class_loss, losses},
      {"nll_loss2d", F::class_loss},
      {"nll_loss_nd", F::class_loss},

      {"cosine_embedding_loss", F::sample_loss},
      {"multi_margin_loss", F::sample_loss},
      {"multilabel_margin_loss", F::sample_loss},
      {"triplet_margin_loss", F::sample_loss},

      {"ctc_loss", F::ctc_loss},
  };
}

}  // namespace rannc::ir::operators
