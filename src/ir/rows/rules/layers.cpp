#include <algorithm>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// Keeps the rows of the first operand where they are; the others must not hold rows.
RowAnswer keep_first(const RowCall& call, bool is_allowed) {
  const ValueId input = call.operands().front();
  const Rows rows = call.rows(input);
  std::vector<Placed> operands{{rows, is_allowed ? rows.dim : -1}};
  for (size_t i = 1; i < call.operands().size(); ++i) {
    operands.push_back({call.rows(call.operands()[i]), -1});
  }
  return meet(call, operands);
}

int spatial_dims(const RowCall& call) {
  if (call.base().starts_with("pixel_")) return 3;  // channels turn into places
  for (int count = 1; count <= 3; ++count) {
    if (call.base().find(std::to_string(count) + "d") != std::string_view::npos) return count;
  }
  return call.result_rank() - 1;
}

}  // namespace

RowAnswer convolution(const RowCall& call) {
  const ValueId input = call.tensor(0);
  // Without a batch dimension the input has one dimension less than the weight.
  const bool is_batched = call.rank(input) == call.rank(call.tensor(1));
  return keep_first(call, is_batched && call.rows(input).dim == 0);
}

RowAnswer spatial(const RowCall& call) {
  const int limit = call.rank(call.operands().front()) - spatial_dims(call);
  return keep_first(call, call.rows(call.operands().front()).dim < limit);
}

RowAnswer pad(const RowCall& call) {
  const ValueId input = call.tensor(0);
  const Rows rows = call.rows(input);
  const std::vector<AffineInt> widths = call.integers(1);
  // Pairs of widths, from the last dimension on.
  const auto pair = static_cast<size_t>(2 * (call.rank(input) - 1 - rows.dim));
  const bool is_padded =
      pair + 1 < widths.size() && (widths[pair] != AffineInt{} || widths[pair + 1] != AffineInt{});
  return keep_first(call, !is_padded);
}

RowAnswer batch_norm(const RowCall& call) {
  // Running statistics are left out: a share's statistics go in by a rule of their own.
  std::vector<Placed> operands;
  for (size_t index = 0; index < 3; ++index) {
    const ValueId operand = call.tensor(index);
    if (!operand.valid()) continue;
    const Rows rows = call.rows(operand);
    operands.push_back({rows, index == 0 && rows.dim != 1 ? rows.dim : -1});
  }
  const size_t training = call.overload() == "no_stats" ? 3 : 5;
  RowAnswer answer = meet(call, operands);
  if (!is_apart(answer.rows.front())) return answer;
  // native_batch_norm also returns what it computed over the batch.
  const bool is_training = training == 3 ? call.boolean(3, true) : call.boolean(5, false);
  const Rows statistics{.kind = is_training ? RowKind::mixed : RowKind::none};
  while (answer.rows.size() < call.node().outputs.size()) answer.rows.push_back(statistics);
  answer.why_mixed = call.node().op + " returns the statistics of the batch";
  return answer;
}

RowAnswer layer_norm(const RowCall& call) {
  const ValueId input = call.tensor(0);
  const int limit = call.rank(input) - static_cast<int>(call.integers(1).size());
  return keep_first(call, call.rows(input).dim < limit);
}

RowAnswer rows_first(const RowCall& call) {
  std::vector<Placed> operands;
  for (ValueId operand : call.operands()) {
    // instance_norm's statistics, as batch_norm's.
    const bool is_statistic =
        call.base() == "instance_norm" && (operand == call.tensor(3) || operand == call.tensor(4));
    const Rows rows = call.rows(operand);
    if (!is_statistic) operands.push_back({rows, rows.dim == 0 ? 0 : -1});
  }
  return meet(call, operands);
}

// How often an index occurs is known of the whole batch only.
constexpr const char* kByFrequency = "divides gradients by how often an index is in the batch";

RowAnswer embedding(const RowCall& call) {
  if (call.boolean(3, false)) return call.mixed(kByFrequency);
  const Rows indices = call.rows(call.tensor(1));
  return meet(call, {{call.rows(call.tensor(0)), -1}, {indices, indices.dim}});
}

RowAnswer embedding_bag(const RowCall& call) {
  if (call.boolean(3, false)) return call.mixed(kByFrequency);
  const Rows indices = call.rows(call.tensor(1));
  const Rows offsets = call.rows(call.tensor(2));
  if (indices.kind == RowKind::none && offsets.kind == RowKind::none) return keep_first(call, true);
  // What F.embedding_bag does with indices (B, L): they are flattened, and each row is a bag.
  const auto numbers = call.row_numbers(call.tensor(2));
  const bool has_last_offset = call.boolean(7, false);
  const bool is_row_a_bag = is_apart(indices) && indices.outer == 1 && numbers &&
                            numbers->inner * numbers->step == indices.inner && !has_last_offset;
  if (!is_row_a_bag) return call.mixed("takes bags that may hold several rows");
  std::vector<Placed> operands{{call.rows(call.tensor(0)), -1}, {indices, 0}};
  if (call.tensor(6).valid()) operands.push_back({call.rows(call.tensor(6)), 0});
  RowAnswer answer = meet(call, operands);
  if (is_apart(answer.rows.front())) answer.rows.front().inner = numbers->inner;
  // The others number the bags.
  answer.rows.push_back({.kind = RowKind::mixed});
  return answer;
}

RowAnswer recurrent(const RowCall& call) {
  if (call.overload() != "input") return {};  // packed sequences order rows by length
  const ValueId input = call.tensor(0);
  const int batch_dim = call.rank(input) < 3 ? -1 : call.boolean(8, false) ? 0 : 1;
  const Rows rows = call.rows(input);
  std::vector<Placed> operands{{rows, rows.dim == batch_dim ? batch_dim : -1}};
  for (ValueId hidden : call.tensors(1)) {
    const Rows hidden_rows = call.rows(hidden);
    operands.push_back({hidden_rows, hidden_rows.dim == 1 ? batch_dim : -1});
  }
  for (ValueId weight : call.tensors(2)) operands.push_back({call.rows(weight), -1});
  RowAnswer answer = meet(call, operands);
  const Rows output = answer.rows.front();
  while (answer.rows.size() < call.node().outputs.size()) {
    answer.rows.push_back(at_dim(output, 1));
  }
  return answer;
}

RowAnswer one_hot(const RowCall& call) { return keep_first(call, true); }

}  // namespace rannc::ir::rules
