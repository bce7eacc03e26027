#pragma once

#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/rows/row_call.h"
#include "ir/sharding/contents.h"
#include "rannc/ir/graph.h"

namespace rannc::ir::sharding {

/// What a node does with a dimension that is cut, where it does not pass it on as it is.
enum class Role {
  whole,     ///< it needs all of it
  reduced,   ///< parts give parts of a sum
  exchange,  ///< parts and some numbers that the ranks exchange: written out by exchange.cpp
};

/// What dimensions count, for all values of a graph.
class Dimensions {
 public:
  explicit Dimensions(const Graph& graph);
  [[nodiscard]] ContentId of(ValueId value, int dim) const {
    return of_.at(value.index).at(static_cast<size_t>(dim));
  }
  [[nodiscard]] const std::vector<ContentId>& of(ValueId value) const {
    return of_.at(value.index);
  }
  Contents contents;

 private:
  std::vector<std::vector<ContentId>> of_;
};

/// Sizes are compared at this number of rows: a prime that no model has as a size.
constexpr int64_t kRows = 1000003;

/// One call, to which a rule says of each dimension of its operands and results what it is. Of what
/// a rule does not speak, all is needed.
class FactorCall {
 public:
  FactorCall(const RowCall& call, Dimensions& dimensions) : call_(call), all_(dimensions) {}

  [[nodiscard]] const RowCall& call() const { return call_; }
  [[nodiscard]] const Graph& graph() const { return call_.graph(); }
  [[nodiscard]] ValueId result(size_t index = 0) const;
  [[nodiscard]] int rank(ValueId value) const { return call_.rank(value); }
  [[nodiscard]] int64_t size(ValueId value, int dim) const;
  [[nodiscard]] ContentId content(ValueId value, int dim) const { return all_.of(value, dim); }
  [[nodiscard]] Contents& contents() { return all_.contents; }

  /// These dimensions count the same, and pass.
  void same(ValueId a, int dim_a, ValueId b, int dim_b);
  /// Dimensions of `value` from the right are those of `result`, but where they are 1.
  void broadcast(ValueId value, ValueId result);
  /// All dimensions, one by one, but `except`.
  void same_but(ValueId a, ValueId b, const std::set<int>& except);
  void passes(ValueId value, int dim) { spoken_of_.emplace(value, dim); }
  void is(Role role, ValueId value, int dim);
  void whole(ValueId value, int dim) { is(Role::whole, value, dim); }
  void all_whole();

  /// Marks what no rule has spoken of as whole, and gives all marks.
  [[nodiscard]] std::vector<std::pair<ContentId, Role>> finish();

 private:
  const RowCall& call_;
  Dimensions& all_;
  std::vector<std::pair<ContentId, Role>> marks_;
  std::set<std::pair<ValueId, int>> spoken_of_;
};

using FactorRule = void (*)(FactorCall&);
/// By the name of an operator without namespace, overload and underscore; null: every dimension is
/// needed whole.
[[nodiscard]] FactorRule find_factor_rule(std::string_view base);

/// Slices of one value that, side by side, are all of a dimension: its segments. `begin` of each is
/// known by its node.
class Tiles {
 public:
  explicit Tiles(const Graph& graph);
  /// Whether this slice is one of the tiles of its operand.
  [[nodiscard]] bool has(NodeId slice) const { return nodes_.contains(slice); }
  /// All tiles that this one is of, in order.
  [[nodiscard]] const std::vector<NodeId>& beside(NodeId slice) const {
    return groups_.at(nodes_.at(slice));
  }

 private:
  std::vector<std::vector<NodeId>> groups_;
  std::map<NodeId, size_t> nodes_;
};

}  // namespace rannc::ir::sharding
