#include "ir/sharding/factor_call.h"

#include <algorithm>

namespace rannc::ir::sharding {

Dimensions::Dimensions(const Graph& graph) {
  for (const Value& value : graph.values) {
    auto& dims = of_.emplace_back();
    for (const AffineInt& size : value.dims) dims.push_back(contents.fresh(size.at(kRows)));
  }
}

ValueId FactorCall::result(size_t index) const { return call_.node().outputs.at(index); }

int64_t FactorCall::size(ValueId value, int dim) const {
  return call_.dims(value).at(static_cast<size_t>(dim)).at(kRows);
}

void FactorCall::same(ValueId a, int dim_a, ValueId b, int dim_b) {
  contents().unify(content(a, dim_a), content(b, dim_b));
  passes(a, dim_a);
  passes(b, dim_b);
}

void FactorCall::broadcast(ValueId value, ValueId result) {
  const int shift = rank(result) - rank(value);
  for (int dim = 0; dim < rank(value); ++dim) {
    const int64_t mine = size(value, dim);
    if (shift + dim < 0 || mine == 1) continue;
    if (mine == size(result, shift + dim)) same(value, dim, result, shift + dim);
  }
  for (int dim = 0; dim < rank(result); ++dim) {
    if (dim < shift || size(value, dim - shift) == 1) passes(result, dim);
  }
}

void FactorCall::same_but(ValueId a, ValueId b, const std::set<int>& except) {
  for (int dim = 0; dim < std::min(rank(a), rank(b)); ++dim) {
    if (!except.contains(dim)) same(a, dim, b, dim);
  }
}

void FactorCall::is(Role role, ValueId value, int dim) {
  marks_.emplace_back(content(value, dim), role);
  passes(value, dim);
}

void FactorCall::all_whole() {
  const auto mark = [&](ValueId value) {
    for (int dim = 0; value.valid() && dim < rank(value); ++dim) whole(value, dim);
  };
  for (const ValueId operand : call_.operands()) mark(operand);
  for (const ValueId output : call_.node().outputs) mark(output);
}

std::vector<std::pair<ContentId, Role>> FactorCall::finish() {
  const auto check = [&](ValueId value) {
    for (int dim = 0; value.valid() && dim < rank(value); ++dim) {
      if (size(value, dim) != 1 && !spoken_of_.contains({value, dim})) whole(value, dim);
    }
  };
  for (const ValueId operand : call_.operands()) check(operand);
  for (const ValueId output : call_.node().outputs) check(output);
  return std::move(marks_);
}

Tiles::Tiles(const Graph& graph) {
  struct Tile {
    int64_t begin;
    int64_t end;
    NodeId node;
  };
  std::map<std::pair<ValueId, int>, std::vector<Tile>> of;
  const ArgumentsOnly no_rows;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const NodeId id{index};
    if (base_name(graph[id].op) != "slice" || graph[id].kind != OpKind::dispatcher) continue;
    const RowCall call(graph, id, no_rows);
    const ValueId from = call.tensor(0);
    const int dim = call.dimension(1, call.rank(from), 0);
    const int64_t size = call.dims(from)[static_cast<size_t>(dim)].at(kRows);
    const auto place = [&](size_t argument, int64_t fallback) {
      const int64_t at = call.integer(argument, fallback).at(kRows);
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    if (call.integer(4, 1) != AffineInt{1, 0}) continue;
    const Tile tile{place(2, 0), place(3, size), id};
    if (tile.end > tile.begin && tile.end - tile.begin < size) of[{from, dim}].push_back(tile);
  }
  for (auto& [from, tiles] : of) {
    std::ranges::stable_sort(tiles, {}, &Tile::begin);
    int64_t at = 0;
    bool side_by_side = true;
    std::vector<NodeId> group;
    for (const Tile& tile : tiles) {
      side_by_side = side_by_side && tile.begin == at;
      at = tile.end;
      group.push_back(tile.node);
    }
    const int64_t size = graph[from.first].dims[static_cast<size_t>(from.second)].at(kRows);
    if (!side_by_side || at != size) continue;
    for (const NodeId node : group) nodes_[node] = groups_.size();
    groups_.push_back(std::move(group));
  }
}

}  // namespace rannc::ir::sharding
