#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> arrange() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"cat", F::cat, keeps_nothing, known},

      {"stack", F::stack, keeps_nothing, known},

      {"repeat", F::repeat, keeps_nothing, known}, {"tile", F::repeat},

      {"repeat_interleave", F::repeat_interleave},
  };
}

}  // namespace rannc::ir::operators
