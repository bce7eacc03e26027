#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<OtherName> other_names() {
  return {
      {"absolute", "abs"},
      {"arccos", "acos"},
      {"arcsin", "asin"},
      {"arctan", "atan"},
      {"arctan2", "atan2"},
      {"__and__", "bitwise_and"},
      {"__lshift__", "bitwise_left_shift"},
      {"__or__", "bitwise_or"},
      {"__rshift__", "bitwise_right_shift"},
      {"__xor__", "bitwise_xor"},
      {"concat", "cat"},
      {"concatenate", "cat"},
      {"clip", "clamp"},
      {"divide", "div"},
      {"true_divide", "div"},
      {"special_erf", "erf"},
      {"broadcast_to", "expand"},
      {"special_expm1", "expm1"},
      {"greater_equal", "ge"},
      {"greater", "gt"},
      {"_unsafe_index", "index"},
      {"_unsafe_index_put", "index_put"},
      {"less_equal", "le"},
      {"special_log1p", "log1p"},
      {"special_logit", "logit"},
      {"less", "lt"},
      {"__matmul__", "matmul"},
      {"linalg_matmul", "matmul"},
      {"moveaxis", "movedim"},
      {"multiply", "mul"},
      {"not_equal", "ne"},
      {"negative", "neg"},
      {"ger", "outer"},
      {"special_expit", "sigmoid"},
      {"subtract", "sub"},
      {"swapaxes", "transpose"},
      {"swapdims", "transpose"},
      {"special_xlogy", "xlogy"},
  };
}

}  // namespace rannc::ir::operators
