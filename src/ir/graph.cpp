#include "rannc/ir/graph.h"

#include <algorithm>

namespace rannc::ir {

int64_t Value::bytes(int64_t row_count) const {
  int64_t count = 1;
  for (const AffineInt& dim : dims) count *= dim.at(row_count);
  return count * size_bytes(dtype);
}

bool has_row_dimension(const Value& value) {
  if (value.rows.kind == RowKind::apart) return true;
  if (value.rows.kind != RowKind::mixed) return false;
  const size_t dim = static_cast<size_t>(value.rows.dim);
  return std::ranges::count_if(value.dims, &AffineInt::depends_on_rows) == 1 &&
         dim < value.dims.size() && value.dims[dim] == AffineInt{0, 1};
}

const std::string& known_op(const Node& node) { return node.like.empty() ? node.op : node.like; }

ValueId Graph::add_value(Value value) {
  const ValueId id{static_cast<uint32_t>(values.size())};
  if (!value.storage.valid()) value.storage = id;
  values.push_back(std::move(value));
  return id;
}

NodeId Graph::add_node(Node node) {
  const NodeId id{static_cast<uint32_t>(nodes.size())};
  for (ValueId output : node.outputs) {
    if (output.valid()) (*this)[output].producer = id;
  }
  nodes.push_back(std::move(node));
  return id;
}

std::vector<ValueId> Graph::operands(NodeId id) const {
  std::vector<ValueId> found;
  for (const Argument& argument : (*this)[id].inputs) {
    if (const auto* value = std::get_if<ValueId>(&argument)) {
      found.push_back(*value);
    } else if (const auto* list = std::get_if<ValueList>(&argument)) {
      std::ranges::copy_if(list->values, std::back_inserter(found), &ValueId::valid);
    }
  }
  return found;
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> users(values.size());
  for (uint32_t index = 0; index < nodes.size(); ++index) {
    for (ValueId operand : operands({index})) {
      std::vector<NodeId>& list = users[operand.index];
      if (list.empty() || list.back().index != index) list.push_back({index});
    }
  }
  return users;
}

std::optional<NodeId> Graph::find_node(const std::string& node_name) const {
  const auto found = std::ranges::find(nodes, node_name, &Node::name);
  if (found == nodes.end()) return std::nullopt;
  return NodeId{static_cast<uint32_t>(found - nodes.begin())};
}

std::optional<ValueId> Graph::find_value(const std::string& value_name) const {
  const auto found = std::ranges::find(values, value_name, &Value::name);
  if (found == values.end()) return std::nullopt;
  return ValueId{static_cast<uint32_t>(found - values.begin())};
}

}  // namespace rannc::ir
