#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ir/sharding/analysis.h"

namespace rannc::ir::sharding {

/// Along which factor each node runs and each value is kept, of those that are cut.
class Decisions {
 public:
  /// `held_otherwise`: state that is not kept along a factor. `sequences`: factors along which
  /// sums of parts stay cut, and what follows them, up to the next product.
  Decisions(const Graph& graph, const Analysis& analysis, std::set<ContentId> cut,
            std::set<ValueId> held_otherwise, std::set<ContentId> sequences = {});

  /// Along which a node runs on parts; nothing where it runs on whole values, on every place alike.
  [[nodiscard]] std::optional<ContentId> of(NodeId node) const { return nodes_[node.index]; }
  /// Along which a value is cut where it is made; a parameter, where it is kept.
  [[nodiscard]] std::optional<ContentId> of(ValueId value) const { return values_[value.index]; }
  /// Whether a node gives a sum of which each place has a part.
  [[nodiscard]] bool gives_sum(NodeId node) const;
  /// Whether somebody writes the memory of a value, so that no copy of it is kept.
  [[nodiscard]] bool is_written(ValueId value) const { return written_.contains(storage(value)); }

 private:
  void decide();
  [[nodiscard]] std::optional<ContentId> choice(NodeId node) const;
  [[nodiscard]] bool fits(NodeId node, ContentId factor) const;
  /// Whether a node between products goes on along a sequence.
  [[nodiscard]] bool goes_on(NodeId node, ContentId sequence) const;
  /// Whether the sizes of its parts are those of any number of rows, which collectives need: not
  /// where places and rows are one dimension.
  [[nodiscard]] bool has_fixed_parts(ValueId value, ContentId sequence) const;
  void keep_sum_cut(NodeId node);
  /// Storages that are written and not cut alike from first to last, for which it has no whole yet.
  bool find_unlike();
  /// Values that somebody needs whole, and that no collective can put together.
  bool find_apart();
  /// Sums that nothing goes on with as they are cut.
  bool find_idle();
  [[nodiscard]] ValueId storage(ValueId value) const { return graph_[value].storage; }

  const Graph& graph_;
  const Analysis& analysis_;
  std::set<ContentId> cut_;
  std::set<ValueId> held_otherwise_;
  std::set<ContentId> sequences_;
  std::set<ValueId> written_;
  std::set<ValueId> whole_;  ///< storages that stay whole
  std::set<ValueId> never_cut_;
  std::set<ValueId> whole_sums_;
  std::vector<std::optional<ContentId>> nodes_;
  std::vector<std::optional<ContentId>> values_;
};

}  // namespace rannc::ir::sharding
