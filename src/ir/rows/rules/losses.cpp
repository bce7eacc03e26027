#include <algorithm>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// torch's Reduction: 0 none, 1 mean, 2 sum.
RowAnswer reduce_loss(const RowCall& call, RowAnswer elements, size_t reduction_argument) {
  const Rows rows = elements.rows.front();
  if (!is_apart(rows)) return elements;
  const int64_t reduction = call.integer(reduction_argument, 1).fixed;
  if (reduction == 0) return elements;
  return RowAnswer::all(
      {.kind = reduction == 1 ? RowKind::mean : RowKind::sum, .proved = rows.proved});
}

size_t reduction_argument(const RowCall& call) {
  const std::string_view base = call.base();
  if (base == "binary_cross_entropy" || base == "hinge_embedding_loss") return 3;
  if (base == "binary_cross_entropy_with_logits" || base == "margin_ranking_loss" ||
      base == "cosine_embedding_loss") {
    return 4;
  }
  if (base == "poisson_nll_loss" || base == "multi_margin_loss") return 5;
  return base == "triplet_margin_loss" ? 7 : 2;
}

}  // namespace

RowAnswer pointwise_loss(const RowCall& call) {
  int rank = 0;
  for (ValueId operand : call.operands()) rank = std::max(rank, call.rank(operand));
  return reduce_loss(call, broadcast(call, call.operands(), rank), reduction_argument(call));
}

RowAnswer sample_loss(const RowCall& call) {
  return reduce_loss(call, rows_first(call), reduction_argument(call));
}

RowAnswer class_loss(const RowCall& call) {
  const ValueId input = call.tensor(0);
  const ValueId target = call.tensor(1);
  const int class_dim = call.rank(input) == 1 ? 0 : 1;
  const auto without_classes = [&](int dim) {
    return dim == class_dim ? -1 : dim - (dim > class_dim ? 1 : 0);
  };
  const Rows input_rows = call.rows(input);
  const Rows target_rows = call.rows(target);
  const bool has_probabilities = call.rank(target) == call.rank(input);
  std::vector<Placed> operands{
      {input_rows, without_classes(input_rows.dim)},
      {target_rows, has_probabilities ? without_classes(target_rows.dim) : target_rows.dim}};
  const ValueId weight = call.tensor(2);
  if (weight.valid()) operands.push_back({call.rows(weight), -1});
  const RowAnswer elements = meet(call, operands);
  const bool is_mean = call.integer(3, 1).fixed == 1;
  if (weight.valid() && is_mean && is_apart(elements.rows.front()) && !has_probabilities) {
    return call.mixed("divides by the class weights of the whole batch");
  }
  return reduce_loss(call, elements, 3);
}

RowAnswer ctc_loss(const RowCall& call) {
  if (call.rank(call.tensor(0)) != 3) return {};
  std::vector<Placed> operands;
  for (ValueId operand : call.operands()) {
    const Rows rows = call.rows(operand);
    const int place = operand == call.tensor(0) ? 1 : 0;
    operands.push_back({rows, rows.dim == place ? 0 : -1});
  }
  return reduce_loss(call, meet(call, operands), 5);
}

}  // namespace rannc::ir::rules
