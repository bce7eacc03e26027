#include "cost/operator_class.h"

#include "rannc/ir/operators.h"

namespace rannc::cost {
namespace {

OperatorClass class_of(ir::WorkClass work) {
  using enum ir::WorkClass;
  switch (work) {
    case plain:
      return {Work::pointwise, Saves::operands};
    case keeps_nothing:
      return {Work::pointwise, Saves::nothing};
    case keeps_results:
      return {Work::pointwise, Saves::results};
    case keeps_first:
      return {Work::pointwise, Saves::first_operand};
    case keeps_integers:
      return {Work::pointwise, Saves::integers};
    case keeps_mask:
      return {Work::pointwise, Saves::mask};
    case whole_view:
      return {Work::view, Saves::nothing};
    case part_view:
      return {Work::part, Saves::nothing};
    case gathers:
      return {Work::gather, Saves::integers};
    case sums:
      return {Work::reduction, Saves::nothing};
    case pools:
      return {Work::reduction, Saves::first_operand};
    case orders:
      return {Work::reduction, Saves::integers};
    case losses:
      return {Work::reduction, Saves::operands};
    case softmax:
      return {Work::reduction, Saves::results};
    case layer_norm:
      // Backward: x and the gradient are read once for the sums and once for the result, which is
      // written: 5 passes over x, where gradients and saved tensors are 3.
      return {Work::reduction, Saves::first_operand, 1, 5.0 / 3};
    case batch_norm:
      // Forward, the statistics need a pass of their own: x, x and the result are 3 passes instead
      // of 2.
      return {Work::reduction, Saves::first_operand, 1.5, 5.0 / 3};
    case cross_entropy:
      // Log-probabilities as large as the operand are written, and so is their gradient.
      return {Work::reduction, Saves::operands, 2, 2};
    case matrix:
      return {Work::matmul, Saves::operands};
    case grouped_matrix:
      return {Work::grouped_matmul, Saves::operands};
    case linear:
      return {Work::linear, Saves::operands};
    case convolution:
      return {Work::convolution, Saves::operands};
    case transposed_convolution:
      return {Work::transposed_convolution, Saves::operands};
    case einsum:
      return {Work::einsum, Saves::operands};
    case attention:
      return {Work::attention, Saves::all};
    case recurrent:
      return {Work::recurrent, Saves::all};
  }
  return {};
}

}  // namespace

OperatorClass operator_class(std::string_view op) {
  return class_of(ir::find_operator(ir::base_name(op)).work);
}

}  // namespace rannc::cost
