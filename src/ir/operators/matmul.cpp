#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> matmul() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"bmm", F::matmul, matrix},
      {"dot", F::matmul, matrix},
      {"matmul", F::matmul, matrix},
      {"mm", F::matmul, matrix},
      {"mv", F::matmul, matrix},
      {"vdot", F::matmul},

      {"addmm", F::addmm, matrix},
      {"addmv", F::addmm},
      {"baddbmm", F::addmm, matrix},

      {"linear", F::linear, linear},

      {"einsum", F::einsum, einsum},

      {"bilinear", F::bilinear},

      {"outer", F::outer},

      {"cdist", F::cdist},

      {"scaled_dot_product_attention", F::attention, attention, draws},

      {"addbmm", F::none, matrix},
      {"_grouped_mm", F::none, grouped_matrix},
      {"_scaled_dot_product_efficient_attention", F::none, attention, draws},
      {"_scaled_dot_product_flash_attention", F::none, attention, draws},
      {"_scaled_dot_product_flash_attention_for_cpu", F::none, attention, draws},
  };
}

}  // namespace rannc::ir::operators
