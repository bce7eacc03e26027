#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> views() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"flatten", F::reshape, keeps_nothing, known | mask},
      {"ravel", F::reshape},
      {"reshape", F::reshape, keeps_nothing, known | mask},
      {"_reshape_alias", F::reshape},
      {"reshape_as", F::reshape},
      {"squeeze", F::reshape, whole_view, known | mask},
      {"unflatten", F::reshape, whole_view},
      {"_unsafe_view", F::reshape, whole_view},
      {"unsqueeze", F::reshape, whole_view, known | mask},
      {"view", F::reshape, whole_view, known | mask},
      {"view_as", F::reshape, whole_view, known},
      {"view_as_complex", F::reshape},
      {"view_as_real", F::reshape},
      {"view_copy", F::reshape},

      {"permute", F::permute, whole_view, known},

      {"mT", F::transpose},
      {"matrix_H", F::transpose},
      {"numpy_T", F::transpose, whole_view},
      {"t", F::transpose, whole_view, known},
      {"transpose", F::transpose, whole_view, known},

      {"movedim", F::movedim},

      {"broadcast_tensors", F::broadcast_tensors},

      {"expand", F::expand, part_view, known},
      {"expand_as", F::expand, part_view, known},

      {"select", F::select, part_view, known | mask},

      {"slice", F::slice, part_view, known | mask},

      {"narrow", F::narrow, part_view, known},
      {"narrow_copy", F::narrow},

      {"chunk", F::split, part_view},
      {"split", F::split, part_view},
      {"split_with_sizes", F::split, part_view},
      {"tensor_split", F::split},
      {"unsafe_chunk", F::split},
      {"unsafe_split", F::split},
      {"unsafe_split_with_sizes", F::split},

      {"unbind", F::unbind, part_view},

      {"diagonal", F::diagonal, part_view},

      {"as_strided", F::none, part_view},
  };
}

}  // namespace rannc::ir::operators
