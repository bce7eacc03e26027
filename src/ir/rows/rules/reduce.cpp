#include <algorithm>
#include <numeric>

#include "ir/rows/rules/families.h"

namespace rannc::ir::rules {
namespace {

/// Where the schema of a reduction names its dimensions; nullopt when this overload reduces all.
std::optional<size_t> dimensions_argument(const RowCall& call) {
  const std::string_view base = call.base();
  if (base == "linalg_vector_norm" || base == "linalg_norm" || base == "kthvalue") return 2;
  if (base == "norm") {
    return call.overload().starts_with("ScalarOpt_dim") ? std::optional<size_t>(2) : std::nullopt;
  }
  return 1;
}

/// The reduced dimensions of the first operand. None and an empty list mean all of them.
std::vector<int> reduced_dimensions(const RowCall& call) {
  const int rank = call.rank(call.operands().front());
  std::vector<int> all(static_cast<size_t>(rank));
  std::iota(all.begin(), all.end(), 0);
  // Overloads without dimensions have a dtype, a flag, or nothing in that place.
  const bool is_full_overload =
      call.overload().empty() && (call.base() == "sum" || call.base() == "mean" ||
                                  call.base() == "prod" || call.base() == "nansum");
  const auto place = dimensions_argument(call);
  if (!place || is_full_overload || call.integers(*place).empty()) return all;
  return call.dimensions(*place, rank, 0);
}

RowAnswer reduced(const RowCall& call, RowKind over_rows) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  const bool is_linear = over_rows != RowKind::mixed;
  if (is_reduced(rows) && !is_linear) {
    return call.mixed("is not linear in a mean or sum over the batch");
  }
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const std::vector<int> dims = reduced_dimensions(call);
  if (std::ranges::find(dims, rows.dim) != dims.end()) {
    if (is_linear) return RowAnswer::all({.kind = over_rows, .proved = rows.proved});
    return call.mixed_over(rows.dim);
  }
  const bool keeps_dims = call.result_rank() == call.rank(operand);
  const auto before = std::ranges::count_if(dims, [&](int dim) { return dim < rows.dim; });
  return RowAnswer::all(at_dim(rows, keeps_dims ? rows.dim : rows.dim - static_cast<int>(before)));
}

/// Where the schema names the dimension that the operator works along, and its default.
std::pair<size_t, int64_t> working_dimension(const RowCall& call) {
  const std::string_view base = call.base();
  if (base == "topk") return {2, -1};
  if (base == "diff") return {2, -1};
  if (base == "roll") return {2, 0};
  if (base == "sort" || base == "argsort") {
    return {call.overload() == "stable" ? 2 : 1, -1};
  }
  return {1, -1};
}

}  // namespace

RowAnswer sum(const RowCall& call) { return reduced(call, RowKind::sum); }
RowAnswer mean(const RowCall& call) { return reduced(call, RowKind::mean); }
RowAnswer reduce(const RowCall& call) { return reduced(call, RowKind::mixed); }

RowAnswer histogram(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (is_reduced(rows)) return call.mixed("is not linear in a mean or sum over the batch");
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const auto is_zero = [&](size_t place) {
    const auto* number = std::get_if<double>(&call.argument(place));
    return number != nullptr ? *number == 0 : call.integer(place, 0) == AffineInt{};
  };
  if (is_zero(2) && is_zero(3)) return call.mixed("takes its range from all rows");
  return RowAnswer::all({.kind = RowKind::sum, .proved = rows.proved});
}

RowAnswer extremum(const RowCall& call) {
  return call.operands().size() > 1 ? pointwise(call) : reduce(call);
}

RowAnswer along_dimension(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (is_reduced(rows)) return call.mixed("is not linear in a mean or sum over the batch");
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const auto [place, fallback] = working_dimension(call);
  const std::vector<int> dims = call.dimensions(place, call.rank(operand), fallback);
  // roll() without dimensions rolls the flattened tensor.
  const bool hits = (dims.empty() || call.integers(place).empty()) && call.base() == "roll";
  if (hits || std::ranges::find(dims, rows.dim) != dims.end()) return call.mixed_over(rows.dim);
  return broadcast(call, call.operands(), call.rank(operand));
}

RowAnswer triangle(const RowCall& call) {
  const Rows rows = call.rows(call.operands().front());
  if (is_reduced(rows)) return RowAnswer::all(rows);
  if (is_apart(rows) && rows.dim >= call.result_rank() - 2) return call.mixed_over(rows.dim);
  return RowAnswer::all(rows);
}

RowAnswer fourier(const RowCall& call) {
  const ValueId operand = call.operands().front();
  const Rows rows = call.rows(operand);
  if (!is_apart(rows)) return RowAnswer::all(rows);
  const int rank = call.rank(operand);
  // fft(self, n, dim = -1), fft2(self, s, dim = [-2, -1]), fftn(self, s, dim = the last of s, all).
  std::vector<int> dims;
  if (call.is_none(2) && !call.base().ends_with("t")) {
    const size_t sizes = call.integers(1).size();
    const int count = call.base().ends_with("2") ? 2 : sizes > 0 ? static_cast<int>(sizes) : rank;
    for (int dim = rank - count; dim < rank; ++dim) dims.push_back(dim);
  } else {
    dims = call.dimensions(2, rank, -1);
  }
  return std::ranges::find(dims, rows.dim) == dims.end() ? RowAnswer::all(rows)
                                                         : call.mixed_over(rows.dim);
}

RowAnswer similarity(const RowCall& call) {
  int rank = 0;
  for (ValueId operand : call.operands()) rank = std::max(rank, call.rank(operand));
  const RowAnswer answer = broadcast(call, call.operands(), rank);
  const Rows rows = answer.rows.front();
  if (!is_apart(rows)) return answer;
  const int dim = call.base() == "cosine_similarity" ? call.dimension(2, rank, 1) : rank - 1;
  if (rows.dim == dim) return call.mixed_over(dim);
  const bool drops = call.result_rank() < rank && dim < rows.dim;
  return RowAnswer::all(at_dim(rows, rows.dim - (drops ? 1 : 0)));
}

}  // namespace rannc::ir::rules
