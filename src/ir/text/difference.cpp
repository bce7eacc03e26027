#include <fmt/format.h>

#include <algorithm>

#include "ir/names.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

std::string where(const Node& node) {
  return fmt::format("'{}' ({})", node.name, module_place(node));
}

std::string where(const Graph& graph, ValueId id) {
  const Value& value = graph[id];
  if (value.kind != ValueKind::result) {
    return fmt::format("{} '{}'", name_of(value.kind, kValueKindNames), value.name);
  }
  return fmt::format("result '{}' of node {}", value.name, where(graph[value.producer]));
}

// Values that a node reads exist before it, and its results after it; so values up to its last
// result are compared before the next node, and what differs first in the model is named first.
class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b) : a_(a), b_(b) {}

  std::string run() {
    if (a_.name != b_.name) {
      return fmt::format("the graphs are called '{}' and '{}'", a_.name, b_.name);
    }
    const size_t shared = std::min(a_.nodes.size(), b_.nodes.size());
    for (uint32_t index = 0; index < shared; ++index) {
      if (!compare_states(index) || !compare_nodes({index})) return difference_;
    }
    if (a_.nodes.size() != b_.nodes.size()) {
      const bool first_is_longer = a_.nodes.size() > b_.nodes.size();
      const Graph& longer = first_is_longer ? a_ : b_;
      return fmt::format("the {} graph has {} more nodes, from node {} on",
                         first_is_longer ? "first" : "second", longer.nodes.size() - shared,
                         where(longer.nodes[shared]));
    }
    if (!compare_states(static_cast<uint32_t>(shared))) return difference_;
    if (a_.values.size() != b_.values.size()) {
      return fmt::format("the graphs have {} and {} values", a_.values.size(), b_.values.size());
    }
    const std::string header_a = header_line(a_);
    const std::string header_b = header_line(b_);
    if (header_a != header_b) {
      return fmt::format("inputs or outputs differ:\n  {}\n  {}", header_a, header_b);
    }
    return "";
  }

 private:
  bool differ(std::string message) {
    difference_ = std::move(message);
    return false;
  }

  // Compares the values that come before node `nodes_done` in the text form.
  bool compare_states(uint32_t nodes_done) {
    for (; next_ < std::min(a_.values.size(), b_.values.size()); ++next_) {
      const ValueId id{next_};
      if (waits(a_[id], a_, nodes_done) && waits(b_[id], b_, nodes_done)) return true;
      const std::string line_a = value_line(a_, id);
      const std::string line_b = value_line(b_, id);
      if (line_a == line_b) continue;
      return differ(fmt::format("{} differs from {}:\n  {}\n  {}", where(a_, id), where(b_, id),
                                line_a, line_b));
    }
    return true;
  }
  static bool waits(const Value& value, const Graph& graph, uint32_t nodes_done) {
    return value.kind == ValueKind::result && value.producer.index >= nodes_done &&
           nodes_done < graph.nodes.size();
  }

  bool compare_nodes(NodeId id) {
    const std::string line_a = node_line(a_, id, /*with_source=*/false);
    const std::string line_b = node_line(b_, id, /*with_source=*/false);
    if (line_a == line_b) return true;
    return differ(fmt::format("node {} differs from node {}:\n  {}\n  {}", where(a_[id]),
                              where(b_[id]), line_a, line_b));
  }

  const Graph& a_;
  const Graph& b_;
  uint32_t next_ = 0;
  std::string difference_;
};

}  // namespace

std::string first_difference(const Graph& a, const Graph& b) { return Comparison(a, b).run(); }

}  // namespace rannc::ir
