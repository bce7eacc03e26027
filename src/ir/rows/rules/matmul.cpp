#include <algorithm>
#include <map>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// Where dimensions of the factors of `a @ b` lie in a product of `rank` dimensions; -1 when they
/// are summed over.
int place_left(int dim, int a_rank, int b_rank, int rank) {
  const int matrix_dims = b_rank == 1 ? 1 : 2;
  if (a_rank == 1 || dim == a_rank - 1) return -1;
  if (dim == a_rank - 2) return rank - matrix_dims;
  return rank - matrix_dims - (a_rank - 2 - dim);
}
int place_right(int dim, int b_rank, int a_rank, int rank) {
  const int matrix_dims = a_rank == 1 ? 1 : 2;
  if (b_rank == 1 || dim == b_rank - 2) return -1;
  if (dim == b_rank - 1) return rank - 1;
  return rank - matrix_dims - (b_rank - 2 - dim);
}

std::vector<Placed> factors(const RowCall& call, ValueId a, ValueId b) {
  const int rank = call.result_rank();
  const Rows rows_a = call.rows(a);
  const Rows rows_b = call.rows(b);
  return {{rows_a, place_left(rows_a.dim, call.rank(a), call.rank(b), rank)},
          {rows_b, place_right(rows_b.dim, call.rank(b), call.rank(a), rank)}};
}

/// A product is linear in each factor, so it keeps the kind of its only batch-dependent one. A
/// constant term may be added to a mean, but not to a sum.
RowAnswer product(const RowCall& call, const std::vector<Placed>& operands, bool has_constant) {
  const Placed* only = nullptr;
  int dependent = 0;
  for (const Placed& operand : operands) {
    if (operand.rows.kind == RowKind::none) continue;
    only = &operand;
    ++dependent;
  }
  const bool is_linear = dependent == 1 && is_reduced(only->rows) &&
                         (only->rows.kind == RowKind::mean || !has_constant);
  return is_linear ? RowAnswer::all(only->rows) : meet(call, operands);
}

Placed aligned(const RowCall& call, ValueId operand) {
  const Rows rows = call.rows(operand);
  return {rows, rows.dim + call.result_rank() - call.rank(operand)};
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// The last `count` of "0123456789".
std::string digits(size_t count) { return std::string("0123456789").substr(10 - count); }

/// In alphabetical order, as an equation without arrow lists them in its result.
std::string letters_that_occur_once(const std::vector<std::string>& inputs) {
  std::map<char, int> counts;
  for (const std::string& input : inputs) {
    for (const char c : input) ++counts[c];
  }
  std::string letters;
  for (const auto& [letter, count] : counts) {
    const bool is_digit = letter >= '0' && letter <= '9';
    if (count == 1 && !is_digit) letters += letter;
  }
  return letters;
}

}  // namespace

RowAnswer matmul(const RowCall& call) {
  return product(call, factors(call, call.tensor(0), call.tensor(1)), false);
}

RowAnswer addmm(const RowCall& call) {
  std::vector<Placed> operands = factors(call, call.tensor(1), call.tensor(2));
  operands.push_back(aligned(call, call.tensor(0)));
  return product(call, operands, /*has_constant=*/true);
}

RowAnswer linear(const RowCall& call) {
  const ValueId input = call.tensor(0);
  const Rows rows = call.rows(input);
  const Rows weight = call.rows(call.tensor(1));
  std::vector<Placed> operands{{rows, rows.dim == call.rank(input) - 1 ? -1 : rows.dim},
                               {weight, weight.dim == 0 ? call.result_rank() - 1 : -1}};
  const ValueId bias = call.tensor(2);
  if (bias.valid()) operands.push_back(aligned(call, bias));
  return product(call, operands, bias.valid());
}

RowAnswer bilinear(const RowCall& call) {
  std::vector<Placed> operands;
  for (const size_t index : {0, 1, 2, 3}) {  // both inputs, weight, bias
    const ValueId operand = call.tensor(index);
    if (!operand.valid()) continue;
    const Rows rows = call.rows(operand);
    const bool is_kept = index < 2 && rows.dim + 1 < call.rank(operand);
    operands.push_back({rows, is_kept ? rows.dim : -1});
  }
  return meet(call, operands);
}

RowAnswer einsum(const RowCall& call) {
  const auto* given = std::get_if<std::string>(&call.argument(0));
  if (given == nullptr) return {};
  std::string equation = *given;
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  std::vector<std::string> inputs = split_at_commas(equation.substr(0, arrow));
  const std::vector<ValueId> tensors = call.tensors(1);
  if (inputs.size() != tensors.size()) return {};
  // An ellipsis stands for digits, '9' for its last dimension, so that they align from the right.
  size_t hidden = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto rank = static_cast<size_t>(call.rank(tensors[i]));
    if (inputs[i].find("...") == std::string::npos) continue;
    const size_t count = rank + 3 - inputs[i].size();
    if (rank + 3 < inputs[i].size() || count > 10) return {};
    inputs[i].replace(inputs[i].find("..."), 3, digits(count));
    hidden = std::max(hidden, count);
  }
  std::string output;
  if (arrow == std::string::npos) {
    output = digits(hidden) + letters_that_occur_once(inputs);
  } else {
    output = equation.substr(arrow + 2);
    if (const size_t dots = output.find("..."); dots != std::string::npos) {
      output.replace(dots, 3, digits(hidden));
    }
  }

  std::vector<Placed> operands;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& letters = inputs[i];
    const Rows rows = call.rows(tensors[i]);
    if (static_cast<int>(letters.size()) != call.rank(tensors[i])) return {};
    // A letter that one tensor has twice takes a diagonal, which pairs rows with something else.
    const bool is_placed =
        is_apart(rows) && std::ranges::count(letters, letters[static_cast<size_t>(rows.dim)]) == 1;
    const size_t place =
        is_placed ? output.find(letters[static_cast<size_t>(rows.dim)]) : std::string::npos;
    operands.push_back({rows, place == std::string::npos ? -1 : static_cast<int>(place)});
  }
  return product(call, operands, false);
}

RowAnswer outer(const RowCall& call) {
  return product(call, {{call.rows(call.tensor(0)), 0}, {call.rows(call.tensor(1)), 1}}, false);
}

RowAnswer cdist(const RowCall& call) {
  const int rank = call.result_rank();
  std::vector<Placed> operands;
  for (const size_t index : {size_t{0}, size_t{1}}) {
    const ValueId operand = call.tensor(index);
    const Rows rows = call.rows(operand);
    const int from_end = call.rank(operand) - rows.dim;  // 1: features, 2: points, more: batch
    const int place = from_end == 1 ? -1 : index == 1 && from_end == 2 ? rank - 1 : rank - from_end;
    operands.push_back({rows, place});
  }
  return meet(call, operands);
}

RowAnswer attention(const RowCall& call) {
  const int rank = call.result_rank();
  // Each query sees keys and values only; it may be a row of its own unless its place counts.
  const bool is_causal = call.boolean(5, false);
  std::vector<Placed> operands;
  for (const size_t index : {0, 1, 2, 3}) {  // query, key, value, mask
    const ValueId operand = call.tensor(index);
    if (!operand.valid()) continue;
    const Rows rows = call.rows(operand);
    const int from_end = call.rank(operand) - rows.dim;
    const bool is_query_place = from_end == 2 && !is_causal && (index == 0 || index == 3);
    operands.push_back({rows, from_end > 2 || is_query_place ? rank - from_end : -1});
  }
  return meet(call, operands);
}

}  // namespace rannc::ir::rules
