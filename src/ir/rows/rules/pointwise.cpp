#include <algorithm>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// A term or factor of a linear operator: a tensor, or a number, which may be a multiple of the
/// number of rows. Such a number is a sum over the batch: the shares' numbers add up to it.
struct Term {
  RowKind kind = RowKind::none;
  bool is_number = false;
  bool is_zero = false;
};

Term term(const RowCall& call, size_t index) {
  const Argument& argument = call.argument(index);
  if (const auto* value = std::get_if<ValueId>(&argument)) return {.kind = call.rows(*value).kind};
  Term number{.is_number = true};
  if (const auto* integer = std::get_if<AffineInt>(&argument)) {
    number.is_zero = *integer == AffineInt{};
    if (integer->depends_on_rows()) {
      number.kind = integer->fixed == 0 ? RowKind::sum : RowKind::mixed;
    }
  } else if (const auto* real = std::get_if<double>(&argument)) {
    number.is_zero = *real == 0;
  }
  return number;
}

bool takes_row_count(const RowCall& call) {
  return std::ranges::any_of(call.node().inputs, [](const Argument& argument) {
    const auto* integer = std::get_if<AffineInt>(&argument);
    return integer != nullptr && integer->depends_on_rows();
  });
}

RowAnswer of_kind(RowKind kind) { return RowAnswer::all({.kind = kind}); }

bool has(const Term& a, const Term& b, RowKind kind) { return a.kind == kind || b.kind == kind; }

}  // namespace

RowAnswer pointwise(const RowCall& call) {
  if (takes_row_count(call)) return call.mixed("computes with the number of rows");
  return broadcast(call, call.operands(), call.result_rank());
}

RowAnswer identity(const RowCall& call) {
  if (call.operands().empty()) return RowAnswer::none();
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  const bool rounds = is_floating(call.graph()[operand].dtype) && !is_floating(call.result().dtype);
  if (is_reduced(rows) && rounds) return call.mixed("rounds a mean or sum over the batch");
  return RowAnswer::all(rows);
}

RowAnswer add(const RowCall& call) {
  const Term a = term(call, 0);
  const Term b = term(call, 1);
  if (has(a, b, RowKind::apart) || has(a, b, RowKind::mixed)) return pointwise(call);
  if (call.integer(2, 1).depends_on_rows()) return pointwise(call);
  if (has(a, b, RowKind::sum)) {
    const bool both = a.kind == b.kind;
    const bool other_is_zero = (a.is_number && a.is_zero) || (b.is_number && b.is_zero);
    if (!both && !other_is_zero) {
      return call.mixed("adds something else to a sum over the batch");
    }
    return of_kind(RowKind::sum);
  }
  return of_kind(has(a, b, RowKind::mean) ? RowKind::mean : RowKind::none);
}

RowAnswer multiply(const RowCall& call) {
  const Term a = term(call, 0);
  const Term b = term(call, 1);
  if (has(a, b, RowKind::apart) || has(a, b, RowKind::mixed)) return pointwise(call);
  if (a.kind == RowKind::none) return of_kind(b.kind);
  if (b.kind == RowKind::none) return of_kind(a.kind);
  const bool is_mean_times_rows =
      (a.kind == RowKind::mean && b.is_number) || (b.kind == RowKind::mean && a.is_number);
  if (is_mean_times_rows) return of_kind(RowKind::sum);
  return call.mixed("multiplies means or sums over the batch");
}

RowAnswer divide(const RowCall& call) {
  const Term a = term(call, 0);
  const Term b = term(call, 1);
  const bool rounds = std::holds_alternative<std::string>(call.argument(2));
  if (has(a, b, RowKind::apart) || has(a, b, RowKind::mixed)) return pointwise(call);
  if (rounds && (a.kind != RowKind::none || b.kind != RowKind::none)) {
    return call.mixed("rounds a mean or sum over the batch");
  }
  if (b.kind == RowKind::none) return of_kind(a.kind);
  if (a.kind == RowKind::sum && b.is_number) return of_kind(RowKind::mean);
  return call.mixed("divides by a mean or sum over the batch");
}

RowAnswer where(const RowCall& call) {
  const Term condition = term(call, 0);
  const Term a = term(call, 1);
  const Term b = term(call, 2);
  const bool is_scalar =
      condition.kind == RowKind::none && !has(a, b, RowKind::apart) && !has(a, b, RowKind::mixed);
  if (!is_scalar || (a.kind == RowKind::none && b.kind == RowKind::none)) return pointwise(call);
  // One of the two, whatever the share.
  if (!has(a, b, RowKind::sum)) return of_kind(RowKind::mean);
  const auto fits = [](const Term& t) { return t.kind == RowKind::sum || t.is_zero; };
  return fits(a) && fits(b) ? of_kind(RowKind::sum)
                            : call.mixed("takes something else in the place of a sum");
}

RowAnswer dropout(const RowCall& call) {
  const auto* probability = std::get_if<double>(&call.argument(1));
  const bool is_identity = !call.boolean(2, true) || (probability != nullptr && *probability == 0);
  return is_identity ? identity(call) : pointwise(call);
}

RowAnswer copy(const RowCall& call) {
  // The old content goes; only its shape stays.
  const ValueId source = call.tensor(1);
  if (!source.valid()) return fill(call);
  const Rows rows = call.rows(source);
  if (is_apart(rows)) return broadcast(call, {source}, call.result_rank());
  if (rows.kind != RowKind::none) return RowAnswer::all(rows);
  return fill(call);
}

RowAnswer fill(const RowCall& call) {
  const Term value = term(call, 1);
  if (value.kind != RowKind::none) {
    return value.kind == RowKind::apart ? call.mixed("fills a tensor from one row")
                                        : of_kind(value.kind);
  }
  const Rows old = call.rows(call.operands().front());
  return RowAnswer::all(is_apart(old) ? old : rows_of_shape(call.result().dims));
}

}  // namespace rannc::ir::rules
