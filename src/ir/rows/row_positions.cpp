#include <set>
#include <string_view>
#include <unordered_map>

#include "ir/rows/row_call.h"
#include "rannc/ir/rows.h"

namespace rannc::ir {
namespace {

/// What a call takes for positions along the rows of another value; invalid where it takes none.
ValueId positions_of(const RowCall& call) {
  // Operators (self, dim, index, ...).
  static const std::set<std::string_view> kAlongADimension{
      "index_select", "index_add", "index_copy", "gather", "scatter", "scatter_add"};
  static const std::set<std::string_view> kBags{"embedding_bag", "_embedding_bag",
                                                "_embedding_bag_forward_only"};
  if (kBags.contains(call.base())) return call.tensor(2);
  const ValueId from = call.tensor(0);
  if (!from.valid()) return {};
  const Rows& rows = call.graph()[from].rows;
  if (rows.kind != RowKind::apart && rows.kind != RowKind::mixed) return {};
  if (kAlongADimension.contains(call.base())) {
    return call.dimension(1, call.rank(from), 0) == rows.dim ? call.tensor(2) : ValueId{};
  }
  const auto* indices = std::get_if<ValueList>(&call.argument(1));
  if (call.base() != "index" || indices == nullptr) return {};
  const auto dim = static_cast<size_t>(rows.dim);
  if (dim >= indices->values.size() || !indices->values[dim].valid()) return {};
  const ValueId index = indices->values[dim];
  return call.graph()[index].dtype == DType::boolean ? ValueId{} : index;
}

}  // namespace

std::vector<RowPositions> row_positions(const Graph& graph) {
  // What leaves positions what they are.
  static const std::set<std::string_view> kViews{
      "to",    "_to_copy", "view",  "reshape", "squeeze",    "unsqueeze", "select",
      "slice", "expand",   "clone", "alias",   "contiguous", "detach"};
  std::unordered_map<ValueId, ValueId> source;  // by what holds an input's entries
  for (const ValueId input : graph.inputs) source.emplace(input, input);
  const ArgumentsOnly no_rows;
  std::vector<RowPositions> found;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    if (graph.nodes[index].kind != OpKind::dispatcher) continue;
    const RowCall call(graph, NodeId{index}, no_rows);
    const auto viewed = source.find(call.tensor(0));
    if (kViews.contains(call.base()) && viewed != source.end()) {
      const ValueId input = viewed->second;
      for (const ValueId output : graph.nodes[index].outputs) source.emplace(output, input);
    }
    const auto taken = source.find(positions_of(call));
    if (taken != source.end()) found.push_back({NodeId{index}, taken->second});
  }
  return found;
}

}  // namespace rannc::ir
