#include <unordered_map>

#include "ir/rows/row_call.h"
#include "ir/rows/rules/families.h"
#include "rannc/util/error.h"

namespace rannc::ir {

RowRule find_row_rule(std::string_view base) {
  using F = OperatorFamily;
  static const std::unordered_map<OperatorFamily, RowRule> rules{
      {F::pointwise, rules::pointwise},
      {F::identity, rules::identity},
      {F::add, rules::add},
      {F::multiply, rules::multiply},
      {F::where, rules::where},
      {F::divide, rules::divide},
      {F::dropout, rules::dropout},
      {F::copy, rules::copy},
      {F::fill, rules::fill},
      {F::create, rules::create},
      {F::create_like, rules::create_like},
      {F::full, rules::full},
      {F::counting, rules::counting},
      {F::reshape, rules::reshape},
      {F::permute, rules::permute},
      {F::transpose, rules::transpose},
      {F::movedim, rules::movedim},
      {F::broadcast_tensors, rules::broadcast_tensors},
      {F::expand, rules::expand},
      {F::select, rules::select},
      {F::slice, rules::slice},
      {F::narrow, rules::narrow},
      {F::split, rules::split},
      {F::unbind, rules::unbind},
      {F::diagonal, rules::diagonal},
      {F::cat, rules::cat},
      {F::stack, rules::stack},
      {F::repeat, rules::repeat},
      {F::repeat_interleave, rules::repeat_interleave},
      {F::sum, rules::sum},
      {F::mean, rules::mean},
      {F::reduce, rules::reduce},
      {F::histogram, rules::histogram},
      {F::extremum, rules::extremum},
      {F::along_dimension, rules::along_dimension},
      {F::fourier, rules::fourier},
      {F::triangle, rules::triangle},
      {F::similarity, rules::similarity},
      {F::matmul, rules::matmul},
      {F::addmm, rules::addmm},
      {F::linear, rules::linear},
      {F::einsum, rules::einsum},
      {F::bilinear, rules::bilinear},
      {F::outer, rules::outer},
      {F::cdist, rules::cdist},
      {F::attention, rules::attention},
      {F::convolution, rules::convolution},
      {F::spatial, rules::spatial},
      {F::pad, rules::pad},
      {F::batch_norm, rules::batch_norm},
      {F::layer_norm, rules::layer_norm},
      {F::rows_first, rules::rows_first},
      {F::embedding, rules::embedding},
      {F::embedding_bag, rules::embedding_bag},
      {F::recurrent, rules::recurrent},
      {F::one_hot, rules::one_hot},
      {F::pointwise_loss, rules::pointwise_loss},
      {F::class_loss, rules::class_loss},
      {F::sample_loss, rules::sample_loss},
      {F::ctc_loss, rules::ctc_loss},
      {F::index, rules::index},
      {F::index_put, rules::index_put},
      {F::index_select, rules::index_select},
      {F::index_write, rules::index_write},
      {F::gather, rules::gather},
  };
  const OperatorFamily family = find_operator(base).family;
  if (family == F::none) return nullptr;
  const auto found = rules.find(family);
  RANNC_CHECK(found != rules.end(), "a family of operators has no rule");
  return found->second;
}

}  // namespace rannc::ir
