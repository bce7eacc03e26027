#include <algorithm>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// The shape of x[i, :, j]: index tensors broadcast against each other, and their dimensions stand
/// where the first index is, or in front when indices are not side by side.
class Indexing {
 public:
  explicit Indexing(const RowCall& call) : call_(call), indices_(call.tensors(1)) {
    for (size_t dim = 0; dim < indices_.size(); ++dim) {
      if (!indices_[dim].valid()) continue;
      if (first_ < 0) first_ = static_cast<int>(dim);
      last_ = static_cast<int>(dim);
      ++count_;
      rank_ = std::max(rank_, call.rank(indices_[dim]));
      has_mask_ = has_mask_ || call.graph()[indices_[dim]].dtype == DType::boolean;
    }
  }

  [[nodiscard]] bool has_mask() const { return has_mask_; }
  [[nodiscard]] bool is_indexed(int dim) const {
    return dim < static_cast<int>(indices_.size()) && indices_[static_cast<size_t>(dim)].valid();
  }
  [[nodiscard]] ValueId index_of(int dim) const { return indices_[static_cast<size_t>(dim)]; }
  [[nodiscard]] int rank() const { return call_.rank(call_.tensor(0)) - count_ + rank_; }

  /// Where a dimension of the indexed tensor, which is not indexed, lies in the result.
  [[nodiscard]] int place(int dim) const {
    int before = 0;
    for (int d = 0; d < dim; ++d) before += is_indexed(d) ? 1 : 0;
    const bool is_in_front = dim < start();
    return is_in_front ? dim : rank_ + dim - before;
  }
  /// Where dimension `dim` of an index tensor lies in the result.
  [[nodiscard]] int place_in_index(ValueId index, int dim) const {
    return start() + dim + rank_ - call_.rank(index);
  }
  /// Rows of the index tensors in the result; those that count the rows are left out.
  [[nodiscard]] std::vector<Placed> placed_indices() const {
    std::vector<Placed> placed;
    for (ValueId index : indices_) {
      if (!index.valid() || call_.row_index(index)) continue;
      const Rows rows = call_.rows(index);
      placed.push_back({rows, place_in_index(index, rows.dim)});
    }
    return placed;
  }
  /// Whether an index other than that of dimension `dim` counts the rows.
  [[nodiscard]] bool counts_rows_besides(int dim) const {
    for (size_t d = 0; d < indices_.size(); ++d) {
      const bool counts = indices_[d].valid() && call_.row_numbers(indices_[d]).has_value();
      if (counts && static_cast<int>(d) != dim) return true;
    }
    return false;
  }

 private:
  [[nodiscard]] int start() const { return last_ - first_ + 1 == count_ ? first_ : 0; }

  const RowCall& call_;
  std::vector<ValueId> indices_;
  int first_ = -1;
  int last_ = -1;
  int count_ = 0;
  int rank_ = 0;
  bool has_mask_ = false;
};

/// Rows of the indexed tensor in x[...]; x[arange(B), i] pairs each row with its own index: both
/// count from the beginning of the share, whatever share.
Placed placed_source(const RowCall& call, const Indexing& indexing) {
  Rows rows = call.rows(call.tensor(0));
  if (!is_apart(rows)) return {rows, -1};
  if (!indexing.is_indexed(rows.dim)) return {rows, indexing.place(rows.dim)};
  const ValueId index = indexing.index_of(rows.dim);
  const auto counted = call.row_index(index);
  if (!counted || rows.outer != 1 || rows.inner != counted->inner) return {rows, -1};
  return {rows, indexing.place_in_index(index, counted->dim)};
}

/// The number of a row is another one in a share, so it may only pick the row itself.
bool counts_other_rows(const RowCall& call, const Indexing& indexing) {
  const Rows rows = call.rows(call.tensor(0));
  return indexing.counts_rows_besides(is_apart(rows) ? rows.dim : -1);
}

RowAnswer elements_by_dimension(const RowCall& call, int dim) {
  std::vector<Placed> operands;
  for (ValueId operand : call.operands()) {
    const Rows rows = call.rows(operand);
    const int place = rows.dim + call.result_rank() - call.rank(operand);
    operands.push_back({rows, place == dim ? -1 : place});
  }
  return meet(call, operands);
}

/// Whether a tensor is torch.zeros(...), to which nothing has been written before this call.
bool is_zero(const RowCall& call, ValueId value) {
  const Graph& graph = call.graph();
  NodeId maker = graph[value].producer;
  while (maker.valid() && base_name(graph[maker].op) == "detach") {  // torch records one
    maker = graph[graph.operands(maker).front()].producer;
  }
  if (!maker.valid()) return false;
  const std::string_view base = base_name(graph[maker].op);
  if (base != "zeros" && base != "zeros_like" && base != "new_zeros") return false;
  for (uint32_t index = maker.index; &graph[NodeId{index}] != &call.node(); ++index) {
    for (ValueId written : graph[NodeId{index}].writes) {
      if (graph[written].storage == graph[value].storage) return false;
    }
  }
  return true;
}

/// torch.zeros(bins).scatter_add(0, bin_of_row, x): what rows add to bins is a sum over the rows.
/// Nullopt for other calls.
std::optional<RowAnswer> added_to_bins(const RowCall& call) {
  if (call.base() != "scatter_add" && call.base() != "index_add") return std::nullopt;
  const ValueId self = call.tensor(0);
  const Rows index = call.rows(call.tensor(2));
  const Rows source = call.rows(call.tensor(3));
  const int dim = call.dimension(1, call.rank(self), 0);
  const bool adds_rows = is_apart(index) && is_apart(source) && source.dim == dim &&
                         same_layout(at_dim(index, dim), source) &&
                         (call.base() == "index_add" || index.dim == dim);
  if (!adds_rows || call.rows(self).kind != RowKind::none || !is_zero(call, self)) {
    return std::nullopt;
  }
  return RowAnswer::all({.kind = RowKind::sum, .proved = index.proved && source.proved});
}

/// gather() and take_along_dim() from a tensor without rows, by rows of indices along the dimension
/// that they index: each index picks its element, wherever it stands. Nullopt for other calls.
std::optional<RowAnswer> picked_from_table(const RowCall& call, int dim) {
  const bool is_take = call.base() == "take_along_dim";
  if (call.base() != "gather" && (!is_take || call.is_none(2))) return std::nullopt;
  const Rows index = call.rows(call.tensor(is_take ? 1 : 2));
  const bool picks =
      is_apart(index) && index.dim == dim && call.rows(call.tensor(0)).kind == RowKind::none;
  return picks ? std::optional(RowAnswer::all(index)) : std::nullopt;
}

}  // namespace

RowAnswer index(const RowCall& call) {
  const Indexing indexing(call);
  const Rows source = call.rows(call.tensor(0));
  if (indexing.has_mask()) {
    return call.mixed("selects as many elements as the data say");
  }
  if (counts_other_rows(call, indexing)) {
    return call.mixed("uses the number of each row as an index");
  }
  std::vector<Placed> operands = indexing.placed_indices();
  const bool is_row_free = std::ranges::all_of(
      operands, [](const Placed& index) { return index.rows.kind == RowKind::none; });
  if (is_reduced(source) && is_row_free) return RowAnswer::all(source);
  operands.push_back(placed_source(call, indexing));
  return meet(call, operands);
}

RowAnswer index_put(const RowCall& call) {
  const Indexing indexing(call);
  const ValueId self = call.tensor(0);
  const ValueId values = call.tensor(2);
  const Rows rows = call.rows(self);
  if (indexing.has_mask()) {
    // x[mask] = value is masked_fill when one mask, from the front on, selects single elements.
    const std::vector<ValueId> masks = call.tensors(1);
    const Rows mask = call.rows(masks.front());
    const bool is_fill = masks.size() == 1 && values.valid() && call.dims(values).empty();
    if (!is_fill) return call.mixed("writes as many elements as the data say");
    return meet(call, {{rows, rows.dim}, {mask, mask.dim}, {call.rows(values), -1}});
  }
  if (counts_other_rows(call, indexing)) {
    return call.mixed("uses the number of each row as an index");
  }
  std::vector<Placed> operands = indexing.placed_indices();
  operands.push_back(placed_source(call, indexing));
  if (values.valid()) {
    const Rows value_rows = call.rows(values);
    operands.push_back({value_rows, value_rows.dim + indexing.rank() - call.rank(values)});
  }
  RowAnswer answer = meet(call, operands);
  const Rows written = answer.rows.front();
  if (!is_apart(written)) return answer;
  if (!is_apart(rows)) return call.mixed("writes rows into a tensor that has none");
  answer.rows = {rows};
  answer.rows.front().proved = written.proved;
  return answer;
}

RowAnswer index_select(const RowCall& call) {
  const ValueId self = call.tensor(0);
  const Rows rows = call.rows(self);
  const Rows index = call.rows(call.tensor(2));
  if (is_reduced(rows) && index.kind == RowKind::none) return RowAnswer::all(rows);
  const int dim = call.dimension(1, call.rank(self), 0);
  return meet(call, {{rows, rows.dim == dim ? -1 : rows.dim}, {index, dim}});
}

RowAnswer index_write(const RowCall& call) {
  if (const auto sum = added_to_bins(call)) return *sum;
  const ValueId self = call.tensor(0);
  const int dim = call.dimension(1, call.rank(self), 0);
  std::vector<Placed> operands;
  for (ValueId operand : call.operands()) {
    const Rows rows = call.rows(operand);
    const bool is_index = operand == call.tensor(2);
    operands.push_back({rows, is_index || rows.dim == dim ? -1 : rows.dim});
  }
  return meet(call, operands);
}

RowAnswer gather(const RowCall& call) {
  if (const auto sum = added_to_bins(call)) return *sum;
  const bool is_take = call.base() == "take_along_dim";
  const int dim = call.dimension(is_take ? 2 : 1, call.result_rank(), 0);
  if (const auto picked = picked_from_table(call, dim)) return *picked;
  const RowAnswer answer = elements_by_dimension(call, is_take && call.is_none(2) ? 0 : dim);
  if (!is_apart(answer.rows.front()) || is_take) return answer;
  // gather and scatter do not broadcast: an operand without rows belongs to the first few rows.
  const bool all_hold_rows = std::ranges::all_of(call.operands(), [&](ValueId operand) {
    return call.dims(operand).empty() || is_apart(call.rows(operand));
  });
  return all_hold_rows ? answer : call.mixed("uses the same elements for the first rows only");
}

}  // namespace rannc::ir::rules
