#include "ir/cut/subgraph.h"

#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

class Builder {
 public:
  Builder(const Graph& graph, const std::vector<bool>& nodes)
      : graph_(graph),
        nodes_(nodes),
        used_(graph.values.size()),
        ids_(graph.values.size()),
        roots_(graph.values.size()) {}

  void use(ValueId id) {
    if (id.valid()) used_[id.index] = true;
  }
  void use_operands_and_results() {
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!nodes_[index]) continue;
      for (ValueId operand : graph_.operands({index})) use(operand);
      for (ValueId output : graph_[NodeId{index}].outputs) use(output);
      for (ValueId written : graph_[NodeId{index}].writes) use(written);
    }
  }

  void copy_values() {
    result_.name = graph_.name;
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      if (used_[index]) copy_value({index});
    }
  }
  void copy_nodes() {
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!nodes_[index]) continue;
      Node node = graph_[NodeId{index}];
      for (Argument& argument : node.inputs) translate(argument);
      for (ValueId& output : node.outputs) output = translate(output);
      for (ValueId& written : node.writes) written = translate(written);
      result_.add_node(std::move(node));
    }
  }
  Graph finish(const std::vector<ValueId>& outputs) {
    for (ValueId output : outputs) result_.outputs.push_back(translate(output));
    share_storages();
    return std::move(result_);
  }

 private:
  void copy_value(ValueId id) {
    Value value = graph_[id];
    const bool is_boundary = value.kind == ValueKind::result && !nodes_[value.producer.index];
    if (is_boundary) value.kind = ValueKind::input;
    value.producer = {};
    value.storage = {};
    const bool is_input = value.kind == ValueKind::input;
    ids_[id.index] = result_.add_value(std::move(value));
    if (is_input) result_.inputs.push_back(ids_[id.index]);
  }

  // Ids need not follow the order of definition, so storages are shared in the order of the nodes.
  void share_storages() {
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const ValueId id = ids_[index];
      if (id.valid() && result_[id].kind != ValueKind::result) share_storage({index});
    }
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      if (!nodes_[index]) continue;
      for (ValueId output : graph_[NodeId{index}].outputs) {
        if (output.valid()) share_storage(output);
      }
    }
  }
  // An input arrives as a tensor of its own, so what shared its storage elsewhere does not here.
  // Results that are views share with the operand that they are a view of.
  void share_storage(ValueId id) {
    Value& value = result_[ids_[id.index]];
    ValueId& root = roots_[graph_[id].storage.index];
    if (!root.valid()) root = ids_[id.index];
    if (value.kind == ValueKind::input) return;
    value.storage = root;
    if (value.kind != ValueKind::result) return;
    for (ValueId operand : graph_.operands(graph_[id].producer)) {
      if (graph_[operand].storage != graph_[id].storage) continue;
      value.storage = result_[ids_[operand.index]].storage;
      return;
    }
  }

  [[nodiscard]] ValueId translate(ValueId id) const {
    return id.valid() ? ids_[id.index] : ValueId{};
  }
  void translate(Argument& argument) const {
    if (auto* value = std::get_if<ValueId>(&argument)) {
      *value = translate(*value);
    } else if (auto* list = std::get_if<ValueList>(&argument)) {
      for (ValueId& element : list->values) element = translate(element);
    }
  }

  const Graph& graph_;
  const std::vector<bool>& nodes_;
  std::vector<bool> used_;
  std::vector<ValueId> ids_;    // of `result_`, by index in `graph_`
  std::vector<ValueId> roots_;  // of `result_`, by index of the storage in `graph_`
  Graph result_;
};

}  // namespace

Graph subgraph(const Graph& graph, const std::vector<bool>& nodes, const std::vector<ValueId>& keep,
               const std::vector<ValueId>& outputs) {
  RANNC_CHECK(nodes.size() == graph.nodes.size(), "every node needs a mark");
  Builder builder(graph, nodes);
  builder.use_operands_and_results();
  for (ValueId id : keep) builder.use(id);
  for (ValueId id : outputs) builder.use(id);
  builder.copy_values();
  builder.copy_nodes();
  return builder.finish(outputs);
}

}  // namespace rannc::ir
