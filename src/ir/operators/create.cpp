#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> create() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"empty", F::create, plain, unset},
      {"empty_permuted", F::create, plain, unset},
      {"empty_strided", F::create, plain, unset},
      {"new_empty", F::create, plain, unset | like},
      {"new_empty_strided", F::create, plain, unset | like},
      {"new_ones", F::create, plain, like},
      {"new_zeros", F::create, plain, like},
      {"ones", F::create},
      {"rand", F::create, plain, draws},
      {"randint", F::create, plain, draws},
      {"randn", F::create, plain, draws},
      {"zeros", F::create},

      {"empty_like", F::create_like, plain, unset | like | released},
      {"ones_like", F::create_like, plain, like | selected | released},
      {"rand_like", F::create_like, plain, draws | like | released},
      {"randint_like", F::create_like, plain, draws | like},
      {"randn_like", F::create_like, plain, draws | like | released},
      {"zeros_like", F::create_like, plain, like | selected | released},

      {"full", F::full},
      {"full_like", F::full, plain, like | released},
      {"new_full", F::full, plain, like},
      {"scalar_tensor", F::full},

      {"arange", F::counting},
      {"eye", F::counting},
      {"linspace", F::counting},
      {"logspace", F::counting},
      {"randperm", F::counting, plain, draws},
      {"range", F::counting},
      {"tril_indices", F::counting},
      {"triu_indices", F::counting},

      {"binomial", F::none, plain, draws},
      {"cauchy", F::none, plain, draws},
      {"geometric", F::none, plain, draws},
      {"log_normal", F::none, plain, draws},
      {"normal_functional", F::none, plain, draws},
      {"poisson", F::none, plain, draws},
      {"_sample_dirichlet", F::none, plain, draws},
      {"_standard_gamma", F::none, plain, draws},
  };
}

}  // namespace rannc::ir::operators
