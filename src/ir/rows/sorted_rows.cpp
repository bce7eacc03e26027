#include "ir/rows/sorted_rows.h"

#include <algorithm>
#include <array>

#include "ir/rows/literals.h"
#include "rannc/ir/draws.h"

namespace rannc::ir {
namespace {

/// x[:, index] and its like: slices of `source` by one tensor.
struct Taken {
  ValueId source;
  ValueId index;
  int dim = 0;
};

/// The dimension of the only index tensor in an argument, and the tensor.
std::optional<std::pair<int, ValueId>> only_index(const RowCall& call, size_t argument) {
  const std::vector<ValueId> indices = call.tensors(argument);
  const auto is_valid = [](ValueId index) { return index.valid(); };
  if (std::ranges::count_if(indices, is_valid) != 1) return std::nullopt;
  const auto found = std::ranges::find_if(indices, is_valid);
  return std::pair(static_cast<int>(found - indices.begin()), *found);
}

/// index, index_select and gather.
std::optional<Taken> taken(const RowCall& call) {
  const ValueId source = call.tensor(0);
  if (!source.valid()) return std::nullopt;
  if (call.base() == "index") {
    const auto index = only_index(call, 1);
    if (!index || call.rank(index->second) != 1) return std::nullopt;
    return Taken{source, index->second, index->first};
  }
  if (call.base() != "index_select" && call.base() != "gather") return std::nullopt;
  return Taken{source, call.tensor(2), call.dimension(1, call.rank(source), 0)};
}

/// index_put, index_add, index_copy, scatter and scatter_add.
std::optional<Put> put(const RowCall& call) {
  const ValueId self = call.tensor(0);
  if (!self.valid()) return std::nullopt;
  const std::string_view base = call.base();
  Put found;
  if (base == "index_put") {
    const auto index = only_index(call, 1);
    if (!index || call.rank(index->second) != 1) return std::nullopt;
    found = {self, index->second, call.tensor(2), index->first, call.boolean(3, false)};
  } else if (base == "index_add" || base == "index_copy" || base == "scatter_add" ||
             (base == "scatter" && call.overload() == "src")) {
    found = {self, call.tensor(2), call.tensor(3), call.dimension(1, call.rank(self), 0),
             base.ends_with("add")};
  }
  if (!found.index.valid() || !found.values.valid()) return std::nullopt;
  if (call.rank(found.values) != call.rank(self)) return std::nullopt;
  // Where there are fewer indices than values, scatter leaves the rest of the values out.
  const bool uses_all =
      !base.starts_with("scatter") || call.dims(found.index) == call.dims(found.values);
  return uses_all ? std::optional(found) : std::nullopt;
}

/// The dimension of an index that says which slices: they are counted in it.
int dim_of_index(const RowCall& call, int dim) {
  return call.base() == "gather" || call.base().starts_with("scatter") ? dim : 0;
}

/// Where slices lie that stood `divisor` to one beside each other.
std::optional<Rows> layout_of_sources(const SortedRole& role, int dim) {
  if (role.layout.inner % role.divisor != 0) return std::nullopt;
  Rows rows = at_dim(role.layout, dim);
  rows.inner /= role.divisor;
  return rows;
}

bool is_exact(DType dtype) {
  return dtype == DType::float64 || dtype == DType::float32 || dtype == DType::int64 ||
         dtype == DType::int32;
}

/// Whether a call gives its operand, perhaps as another type or with other dimensions.
bool passes_elements(const RowCall& call) {
  const bool is_view = call.family() == OperatorFamily::reshape;
  const bool keeps = is_view || call.family() == OperatorFamily::expand || call.is(Trait::passes);
  const bool changes_elements = is_view && call.overload() == "dtype";
  return keeps && !changes_elements && !call.operands().empty() && is_exact(call.result().dtype) &&
         call.node().writes.empty();
}

std::optional<int64_t> whole_number(const Argument& argument) {
  if (const auto* integer = std::get_if<AffineInt>(&argument)) {
    return integer->depends_on_rows() ? std::nullopt : std::optional(integer->fixed);
  }
  const auto* number = std::get_if<double>(&argument);
  if (number == nullptr || *number != static_cast<double>(static_cast<int64_t>(*number))) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

bool is_floor_division(const RowCall& call) {
  if (call.base() == "floor_divide") return true;
  const auto* rounding = std::get_if<std::string>(&call.argument(2));
  return call.base() == "div" && rounding != nullptr &&
         (*rounding == "floor" || *rounding == "trunc");
}

}  // namespace

/// Sorted rows as if they lay where they were before: for rules that keep slices apart.
class SortedRows::AsIfUnsorted : public RowState {
 public:
  explicit AsIfUnsorted(const SortedRows& sorted) : sorted_(sorted) {}
  [[nodiscard]] Rows rows(ValueId value) const override {
    const SortedRole* role = sorted_.find_rows(value);
    return role == nullptr ? sorted_.state_.rows(value) : at_dim(role->layout, role->dim);
  }
  [[nodiscard]] std::optional<RowNumbers> row_numbers(ValueId) const override {
    return std::nullopt;
  }

 private:
  const SortedRows& sorted_;
};

const SortedRole* SortedRows::find(ValueId value) const {
  if (!value.valid() || !roles_[value.index]) return nullptr;
  const NodeId writer = written_[graph_[value].storage.index];
  const bool is_stale = writer.valid() && graph_[value].producer < writer;
  return is_stale ? nullptr : &*roles_[value.index];
}

const SortedRole* SortedRows::find(ValueId value, Kind kind) const {
  const SortedRole* role = find(value);
  return role != nullptr && role->kind == kind ? role : nullptr;
}

const SortedRole* SortedRows::find_rows(ValueId value) const {
  const SortedRole* role = find(value);
  return role != nullptr && (role->kind == Kind::rows || role->kind == Kind::keys) ? role : nullptr;
}

bool SortedRows::counts_up(ValueId value, const SortedRole& role) const {
  const bool is_written = written_[graph_[value].storage.index].valid();
  return counts_up_[value.index] && !is_written &&
         graph_[value].dims == std::vector{AffineInt{0, role.layout.outer * role.layout.inner}};
}

std::optional<RowAnswer> SortedRows::undone(NodeId id, RowRule rule) const {
  const RowCall call(graph_, id, state_);
  if (call.node().kind != OpKind::dispatcher) return std::nullopt;
  if (call.base() == "histc") return std::nullopt;  // of keys: it gives the ends of their groups
  if (const auto slices = taken(call)) {
    const SortedRole* index = find(slices->index, Kind::targets);
    const SortedRole* source = find_rows(slices->source);
    if (index != nullptr && source != nullptr && index->sort == source->sort &&
        index->dim == dim_of_index(call, slices->dim) && source->dim == slices->dim) {
      Rows rows = at_dim(source->layout, slices->dim);
      rows.proved = rows.proved && index->layout.proved;
      return RowAnswer::all(rows);
    }
  }
  if (const auto slices = put(call)) {
    const SortedRole* index = find(slices->index, Kind::sources);
    const SortedRole* values = find_rows(slices->values);
    if (index != nullptr && values != nullptr && index->sort == values->sort &&
        index->dim == dim_of_index(call, slices->dim) && values->dim == slices->dim) {
      return put_back(call, *slices, *index, *values);
    }
  }
  if (!is_slice_by_slice(call, rule)) return std::nullopt;
  const RowAnswer answer = answer_as_if_unsorted(id, rule);
  const bool is_all_reduced = !answer.rows.empty() && std::ranges::all_of(answer.rows, is_reduced);
  return is_all_reduced ? std::optional(answer) : std::nullopt;
}

std::optional<RowAnswer> SortedRows::put_back(const RowCall& call, const Put& slices,
                                              const SortedRole& index,
                                              const SortedRole& values) const {
  auto rows = layout_of_sources(index, slices.dim);
  const Rows self = state_.rows(slices.self);
  // Where every place is written once, it does not matter what was there.
  const bool is_overwritten =
      !slices.adds && index.divisor == 1 && call.dims(slices.self) == call.dims(slices.values);
  const bool is_added = slices.adds && rows && same_layout(self, *rows);
  if (!rows || (!is_overwritten && !is_added)) return std::nullopt;
  rows->proved = rows->proved && values.layout.proved && (is_overwritten || self.proved);
  return RowAnswer::all(*rows);
}

void SortedRows::visit(NodeId id, RowRule rule) {
  const Node& node = graph_[id];
  const RowCall call(graph_, id, state_);
  const bool has_result =
      std::ranges::any_of(node.outputs, [](ValueId output) { return output.valid(); });
  if (has_result && node.kind == OpKind::dispatcher) {
    const ValueId result = node.outputs.front();
    std::optional<SortedRole> role;
    if (call.base() == "sort" || call.base() == "argsort") {
      visit_sort(id, call);
    } else if (call.base() != "histc" && is_slice_by_slice(call, rule)) {
      visit_slice_by_slice(id, rule);
    } else if (result.valid()) {
      role = sorted_by(call);
      if (!role) role = inverted(call);
      if (!role) role = multiplied_in_groups(call);
      if (!role) role = of_places(call);
    }
    if (role) roles_[result.index] = role;
    // torch.arange(n), and copies of it
    const bool starts_at_zero =
        !call.overload().starts_with("start") || call.argument(0) == Argument{AffineInt{}};
    const bool counts = call.base() == "arange" && starts_at_zero && call.result_rank() == 1 &&
                        (call.overload() != "start_step" || call.integer(2, 0) == AffineInt{1, 0});
    const bool copies_count = passes_elements(call) && counts_up_[call.operands().front().index] &&
                              call.dims(call.operands().front()) == call.result().dims;
    if (result.valid()) counts_up_[result.index] = counts || copies_count;
  }
  for (ValueId written : node.writes) written_[graph_[written].storage.index] = id;
}

void SortedRows::visit_sort(NodeId id, const RowCall& call) {
  const ValueId operand = call.tensor(0);
  const bool is_argsort = call.base() == "argsort";
  const ValueId indices = is_argsort ? call.node().outputs[0] : call.node().outputs[1];
  if (!operand.valid() || call.rank(operand) != 1) return;
  if (const SortedRole* sources = find(operand, Kind::sources)) {
    if (sources->divisor != 1 || call.boolean(call.overload() == "stable" ? 3 : 2, false)) return;
    if (!indices.valid()) return;
    roles_[indices.index] = *sources;
    roles_[indices.index]->kind = Kind::targets;
    return;
  }
  const Rows rows = state_.rows(operand);
  if (!is_apart(rows)) return;
  const SortedRole role{.sort = id, .layout = rows};
  const bool descends = call.boolean(call.overload() == "stable" ? 3 : 2, false);
  if (indices.valid()) {
    roles_[indices.index] = role;
    roles_[indices.index]->kind = Kind::sources;
  }
  const ValueId values = call.node().outputs[0];
  if (is_argsort || !values.valid()) return;
  roles_[values.index] = role;
  if (!descends) roles_[values.index]->kind = Kind::keys;
}

bool SortedRows::is_slice_by_slice(const RowCall& call, RowRule rule) const {
  const SortedRole* first = nullptr;
  for (ValueId operand : call.operands()) {
    const SortedRole* role = find_rows(operand);
    if (role == nullptr && state_.rows(operand).kind != RowKind::none) return false;
    if (role != nullptr && first != nullptr && role->sort != first->sort) return false;
    if (role != nullptr) first = role;
  }
  const bool knows_row_count =
      call.family() == OperatorFamily::reshape || call.family() == OperatorFamily::expand;
  return first != nullptr && rule != nullptr && !draws(call.node()) &&
         (knows_row_count || !has_row_dependent_literal(call.node())) &&
         std::ranges::all_of(call.node().writes,
                             [&](ValueId written) { return find_rows(written) != nullptr; });
}

RowAnswer SortedRows::answer_as_if_unsorted(NodeId id, RowRule rule) const {
  const AsIfUnsorted state(*this);
  const RowCall call(graph_, id, state);
  RowAnswer answer = rule(call);
  for (Rows& rows : answer.rows) {
    for (ValueId operand : call.operands()) rows.proved = rows.proved && state.rows(operand).proved;
  }
  return answer;
}

void SortedRows::visit_slice_by_slice(NodeId id, RowRule rule) {
  const RowCall call(graph_, id, state_);
  const auto sorted = std::ranges::find_if(
      call.operands(), [&](ValueId operand) { return find_rows(operand) != nullptr; });
  SortedRole role = *find_rows(*sorted);
  const bool keeps_keys =
      role.kind == Kind::keys && passes_elements(call) && call.dims(*sorted) == call.result().dims;
  const RowAnswer answer = answer_as_if_unsorted(id, rule);
  if (!keeps_keys) role.kind = Kind::rows;
  for (size_t place = 0; place < call.node().outputs.size() && !answer.rows.empty(); ++place) {
    const ValueId output = call.node().outputs[place];
    if (!output.valid()) continue;
    const Rows rows = answer.rows[std::min(place, answer.rows.size() - 1)];
    const Rows shape = rows_of_shape(graph_[output].dims);
    if (!same_layout(rows, at_dim(role.layout, rows.dim)) || !is_apart(shape)) continue;
    if (shape.dim != rows.dim || shape.inner != rows.outer * rows.inner) continue;
    role.dim = rows.dim;
    role.layout.proved = rows.proved;
    roles_[output.index] = role;
  }
}

/// tokens[sources]
std::optional<SortedRole> SortedRows::sorted_by(const RowCall& call) const {
  const auto slices = taken(call);
  if (!slices) return std::nullopt;
  const SortedRole* index = find(slices->index, Kind::sources);
  if (index == nullptr || index->dim != dim_of_index(call, slices->dim)) return std::nullopt;
  const Rows source = state_.rows(slices->source);
  const auto rows = layout_of_sources(*index, slices->dim);
  if (!rows || !same_layout(source, *rows)) return std::nullopt;
  SortedRole role = *index;
  role.kind = Kind::rows;
  role.dim = slices->dim;
  role.divisor = 1;
  role.layout.proved = role.layout.proved && source.proved;
  return role;
}

/// targets[sources] = arange(n)
std::optional<SortedRole> SortedRows::inverted(const RowCall& call) const {
  const auto slices = put(call);
  if (!slices || slices->adds || call.rank(slices->self) != 1) return std::nullopt;
  const SortedRole* index = find(slices->index, Kind::sources);
  if (index == nullptr || index->divisor != 1 || !counts_up(slices->values, *index)) {
    return std::nullopt;
  }
  SortedRole role = *index;
  role.kind = Kind::targets;
  return role;
}

/// Each slice times the matrix of its group. Where the groups are not known to be those of the
/// keys, it is not proved that a slice of another row does not move their ends.
std::optional<SortedRole> SortedRows::multiplied_in_groups(const RowCall& call) const {
  if (known_op(call.node()) != "aten::_grouped_mm") return std::nullopt;
  const SortedRole* slices = find_rows(call.tensor(0));
  const ValueId ends = call.tensor(2);
  const bool is_of_slices = slices != nullptr && slices->dim == 0 && call.rank(call.tensor(0)) == 2;
  if (!is_of_slices || !ends.valid() || call.tensor(3).valid() ||
      state_.rows(call.tensor(1)).kind != RowKind::none ||
      rows_of_shape(call.dims(ends)).kind != RowKind::none) {
    return std::nullopt;
  }
  SortedRole role = *slices;
  role.kind = Kind::rows;
  const SortedRole* of_keys = find(ends, Kind::ends);
  const bool is_proved = of_keys != nullptr && of_keys->sort == role.sort;
  role.layout.proved = role.layout.proved && is_proved && of_keys->layout.proved;
  return role;
}

/// What is computed from places, and from how often each key occurs.
std::optional<SortedRole> SortedRows::of_places(const RowCall& call) const {
  if (call.operands().empty() || !call.node().writes.empty()) return std::nullopt;
  const ValueId operand = call.operands().front();
  const SortedRole* found = find(operand);
  if (found == nullptr) return std::nullopt;
  SortedRole role = *found;
  const bool is_place = role.kind == Kind::sources || role.kind == Kind::targets;
  if (passes_elements(call)) {
    if (call.dims(operand) == call.result().dims) return role;
    // sources.reshape(-1, 1).expand(-1, width), for gather() and scatter_add()
    const Rows shape = rows_of_shape(call.result().dims);
    const bool is_repeated = is_place && is_apart(shape) && shape.dim == 0 &&
                             shape.inner == role.layout.outer * role.layout.inner;
    return is_repeated ? std::optional(role) : std::nullopt;
  }
  if (role.kind == Kind::sources && is_floor_division(call) && call.operands().size() == 1) {
    const auto divisor = whole_number(call.argument(1));
    if (!divisor || *divisor <= 0) return std::nullopt;
    role.divisor *= *divisor;
    return role;
  }
  if (role.kind == Kind::counts && call.base() == "cumsum" && call.result_rank() == 1) {
    role.kind = Kind::ends;
    return role;
  }
  if (role.kind == Kind::keys && call.base() == "histc") {
    const auto bins = whole_number(call.argument(1));
    const auto last = whole_number(call.argument(3));
    const bool one_bin_for_each = bins && last && (*last == *bins || *last == *bins - 1) &&
                                  whole_number(call.argument(2)) == 0;
    if (!one_bin_for_each) return std::nullopt;
    role.kind = Kind::counts;
    return role;
  }
  return std::nullopt;
}

}  // namespace rannc::ir
