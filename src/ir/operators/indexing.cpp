#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> indexing() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"index", F::index, gathers, known},

      {"index_put", F::index_put, keeps_integers},
      {"_index_put_impl", F::index_put},

      {"index_select", F::index_select, gathers, known},

      {"index_add", F::index_write},
      {"index_copy", F::index_write},
      {"index_fill", F::index_write},

      {"gather", F::gather, gathers},
      {"scatter", F::gather, keeps_integers},
      {"scatter_add", F::gather, keeps_integers},
      {"scatter_reduce", F::gather},
      {"take_along_dim", F::gather},

      {"masked_select", F::none, keeps_integers},
  };
}

}  // namespace rannc::ir::operators
