#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// Whether an operator draws random numbers with some arguments.
[[nodiscard]] bool may_draw(std::string_view op);

/// Whether a node draws random numbers with the arguments that it has: not dropout after eval().
/// A scripted function or one written in Python may.
[[nodiscard]] bool draws(const Node& node);

/// Which argument is the probability with which a node drops elements, whether or not the call has
/// one; none for operators that drop nothing, or are not torch's own.
[[nodiscard]] std::optional<size_t> drop_probability(const Node& node);

/// What a node draws whose numbers can be told from seed, step, node and sample alone.
enum class Draw {
  dropout,
  native_dropout,         ///< with its mask as a second result
  feature_dropout,        ///< one number for the first two dimensions, the same for the others
  alpha_dropout,          ///< keeps mean and variance of what SELU gives
  feature_alpha_dropout,  ///< one number, as feature_dropout
  bernoulli,              ///< of a number, or of a tensor of probabilities
  uniform,
  normal,
  exponential,
  integers,
};
/// None for a node that does not draw, and for operators that have no such rule (an LSTM with
/// dropout between its layers).
[[nodiscard]] std::optional<Draw> keyed_draw(const Node& node);

}  // namespace rannc::ir
