#include <fmt/format.h>

#include <string_view>
#include <unordered_set>

#include "rannc/ir/graph.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// Looks at a graph from outside: no other code of this module is used, so that a mistake there
/// cannot hide itself here.
class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  void run() {
    check_inputs();
    for (uint32_t index = 0; index < graph_.values.size(); ++index) check_value({index});
    produced_.resize(graph_.values.size());
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) check_node({index});
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const Value& value = graph_.values[index];
      check(value.kind != ValueKind::result || produced_[index], value,
            "is a result that no node lists among its outputs");
    }
    for (ValueId output : graph_.outputs) {
      if (!in_range(output)) fail(fmt::format("graph '{}' has a dangling output", graph_.name));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InternalError(fmt::format("malformed graph: {}", message));
  }
  template <class... Args>
  [[noreturn]] void fail(const Value& value, fmt::format_string<Args...> what,
                         Args&&... args) const {
    fail(fmt::format("value '{}' ", value.name) + fmt::format(what, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void fail(const Node& node, fmt::format_string<Args...> what, Args&&... args) const {
    fail(fmt::format("node '{}' ({}) ", node.name, node.op) +
         fmt::format(what, std::forward<Args>(args)...));
  }
  void check(bool condition, const Value& value, std::string_view what) const {
    if (!condition) fail(value, "{}", what);
  }
  void check(bool condition, const Node& node, std::string_view what) const {
    if (!condition) fail(node, "{}", what);
  }
  [[nodiscard]] bool in_range(ValueId id) const { return id.index < graph_.values.size(); }

  void check_inputs() {
    std::vector<bool> listed(graph_.values.size());
    for (ValueId input : graph_.inputs) {
      if (!in_range(input)) fail(fmt::format("graph '{}' has a dangling input", graph_.name));
      const Value& value = graph_.values[input.index];
      check(value.kind == ValueKind::input, value, "is listed as an input but is of another kind");
      check(!listed[input.index], value, "is listed twice as an input");
      listed[input.index] = true;
    }
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const Value& value = graph_.values[index];
      check(value.kind != ValueKind::input || listed[index], value,
            "is an input that the graph does not list");
    }
  }

  void check_value(ValueId id) {
    const Value& value = graph_.values[id.index];
    check(!value.name.empty(), value, "has no name");
    check(value_names_.insert(value.name).second, value, "has the name of another value");
    const bool has_state = value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
    check(value.aliases.empty() || has_state, value,
          "has aliases but is neither a parameter nor a buffer");
    for (const std::string& alias : value.aliases) {
      if (!value_names_.insert(alias).second) {
        fail(value, "has the alias '{}', which names another value", alias);
      }
    }
    check(value.object.valid() == (value.kind == ValueKind::constant), value,
          "is a constant without an object, or has an object without being a constant");
    if (value.kind == ValueKind::result) {
      check(value.producer.index < graph_.nodes.size(), value, "is a result without producer");
    } else {
      check(!value.producer.valid(), value, "has a producer but is not a result");
    }
    for (const AffineInt& dim : value.dims) {
      check(dim.per_row >= 0 && (dim.fixed >= 0 || dim.per_row > 0), value,
            "has a dimension that is negative at some number of rows");
    }
    check_storage(value);
    check_rows(value);
  }

  void check_storage(const Value& value) const {
    check(in_range(value.storage), value, "has a dangling storage");
    const Value& root = graph_.values[value.storage.index];
    if (root.storage != value.storage) {
      fail(value, "shares the storage of '{}', which is itself an alias", root.name);
    }
    const bool root_is_first = root.kind != ValueKind::result ||
                               (value.kind == ValueKind::result && root.producer <= value.producer);
    if (!root_is_first) {
      fail(value, "shares the storage of '{}', which is defined later", root.name);
    }
  }

  void check_rows(const Value& value) const {
    const Rows& rows = value.rows;
    check(rows.outer >= 1 && rows.inner >= 1, value, "has a row layout with a size below one");
    if (rows.kind != RowKind::apart) return;
    if (rows.dim < 0 || static_cast<size_t>(rows.dim) >= value.dims.size()) {
      fail(value, "keeps its rows in dimension {}, but has {} dimensions", rows.dim,
           value.dims.size());
    }
    const AffineInt& dim = value.dims[static_cast<size_t>(rows.dim)];
    if (dim != AffineInt{0, rows.outer * rows.inner}) {
      fail(value, "keeps {} x rows x {} in dimension {}, whose size is {} + {} per row", rows.outer,
           rows.inner, rows.dim, dim.fixed, dim.per_row);
    }
  }

  void check_node(NodeId id) {
    const Node& node = graph_.nodes[id.index];
    check(!node.name.empty() && node.name.find(':') == std::string::npos, node,
          "has an empty name or a ':' in its name");
    check(node_names_.insert(node.name).second, node, "has the name of another node");
    check(node.object.valid() == (node.kind != OpKind::dispatcher), node,
          "needs an object exactly when it is scripted or python");
    check(node.kind != OpKind::dispatcher || node.op.find("::") != std::string::npos, node,
          "is no registered operator: its name has no namespace");
    check(node.like.empty() || node.like.find("::") != std::string::npos, node,
          "is like no registered operator: that name has no namespace");
    for (const Argument& argument : node.inputs) {
      if (const auto* value = std::get_if<ValueId>(&argument)) {
        check_read(id, *value);
      } else if (const auto* list = std::get_if<ValueList>(&argument)) {
        for (ValueId element : list->values) {
          if (element.valid()) check_read(id, element);
        }
      }
    }
    for (ValueId output : node.outputs) {
      if (!output.valid()) continue;
      check(in_range(output), node, "has a dangling output");
      const Value& value = graph_.values[output.index];
      if (value.kind != ValueKind::result || value.producer != id || produced_[output.index]) {
        fail(node, "lists '{}' as its output, which it does not produce", value.name);
      }
      produced_[output.index] = true;
    }
    for (ValueId written : node.writes) {
      check(in_range(written), node, "writes a dangling value");
      const Value& value = graph_.values[written.index];
      if (value.kind == ValueKind::result && value.producer > id) {
        fail(node, "writes '{}' before it is defined", value.name);
      }
    }
  }

  void check_read(NodeId id, ValueId operand) const {
    const Node& node = graph_.nodes[id.index];
    check(in_range(operand), node, "reads a dangling value");
    const Value& value = graph_.values[operand.index];
    if (value.kind == ValueKind::result && value.producer >= id) {
      fail(node, "reads '{}' before it is defined", value.name);
    }
  }

  const Graph& graph_;
  std::unordered_set<std::string_view> value_names_;
  std::unordered_set<std::string_view> node_names_;
  std::vector<bool> produced_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace rannc::ir
