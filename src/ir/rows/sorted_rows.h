#pragma once

#include <optional>
#include <vector>

#include "ir/rows/row_call.h"

namespace rannc::ir {

/// What a value has to do with a sort over all rows of the batch.
struct SortedRole {
  enum class Kind {
    rows,     ///< slices of `dim` belong to rows, in the order of the sort
    keys,     ///< the same, and it holds what was sorted, ascending
    sources,  ///< where each slice stood before the sort, divided by `divisor`
    targets,  ///< the inverse: where each slice stands after the sort
    counts,   ///< how often each key occurs
    ends,     ///< one past the last slice of each key
  };
  Kind kind = Kind::rows;
  NodeId sort;
  Rows layout;  ///< that of what was sorted, and of each value that is put back
  int dim =
      0;  ///< the dimension with one slice for each that was sorted; counts and ends have none
  int64_t divisor = 1;
};

/// Slices of `values` written to, or added to, those of `self` that one tensor says.
struct Put {
  ValueId self;
  ValueId index;
  ValueId values;
  int dim = 0;
  bool adds = false;
};

/// Follows rows that are sorted, computed with slice by slice, and put back where they were, as a
/// mixture of experts does with its tokens (Gale et al., "MegaBlocks", MLSys 2023):
///
///     _, sources = experts_of_tokens.sort()
///     result[sources] = grouped_mm(tokens[sources], weights, ends_of_experts)
///
/// No rows interact in `result`: each share of the batch may sort its own. In between, slices are
/// not where their rows are, so these values are `mixed`.
class SortedRows {
 public:
  SortedRows(const Graph& graph, const RowState& state)
      : graph_(graph),
        state_(state),
        roles_(graph.values.size()),
        counts_up_(graph.values.size()),
        written_(graph.values.size()) {}

  /// The results of a call that puts sorted rows back, or adds them up; nullopt for other calls.
  /// `rule`: of its operator, or null.
  [[nodiscard]] std::optional<RowAnswer> undone(NodeId id, RowRule rule) const;

  /// Notes what the results of a node have to do with a sort, before its effects on rows count.
  void visit(NodeId id, RowRule rule);

 private:
  using Kind = SortedRole::Kind;
  class AsIfUnsorted;

  [[nodiscard]] const SortedRole* find(ValueId value) const;
  [[nodiscard]] const SortedRole* find(ValueId value, Kind kind) const;
  [[nodiscard]] const SortedRole* find_rows(ValueId value) const;
  [[nodiscard]] bool counts_up(ValueId value, const SortedRole& role) const;

  [[nodiscard]] std::optional<RowAnswer> put_back(const RowCall& call, const Put& slices,
                                                  const SortedRole& index,
                                                  const SortedRole& values) const;
  [[nodiscard]] bool is_slice_by_slice(const RowCall& call, RowRule rule) const;
  [[nodiscard]] RowAnswer answer_as_if_unsorted(NodeId id, RowRule rule) const;

  void visit_sort(NodeId id, const RowCall& call);
  void visit_slice_by_slice(NodeId id, RowRule rule);
  [[nodiscard]] std::optional<SortedRole> sorted_by(const RowCall& call) const;
  [[nodiscard]] std::optional<SortedRole> inverted(const RowCall& call) const;
  [[nodiscard]] std::optional<SortedRole> multiplied_in_groups(const RowCall& call) const;
  [[nodiscard]] std::optional<SortedRole> of_places(const RowCall& call) const;

  const Graph& graph_;
  const RowState& state_;
  std::vector<std::optional<SortedRole>> roles_;  // by value
  std::vector<bool> counts_up_;                   // by value: 0, 1, 2, ... in its only dimension
  std::vector<NodeId> written_;                   // by storage: the last node that wrote it
};

}  // namespace rannc::ir
