#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string_view>
#include <unordered_map>

#include "rannc/plan/show.h"

namespace rannc::plan {
namespace {

/// In quotation marks, as Graphviz reads it.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string sizes(const ir::Value& value) {
  std::vector<std::string> dims;
  for (const ir::AffineInt& dim : value.dims) {
    dims.push_back(dim.per_row == 0   ? std::to_string(dim.fixed)
                   : dim.per_row == 1 ? "B"
                                      : fmt::format("{}B", dim.per_row));
    if (dim.per_row != 0 && dim.fixed != 0) dims.back() += fmt::format("+{}", dim.fixed);
  }
  return fmt::format("{} ({})", ir::name(value.dtype), fmt::join(dims, ", "));
}

class Picture {
 public:
  Picture(const Plan& plan, const ir::Graph& graph, std::optional<int> only)
      : plan_(plan), graph_(graph), only_(only), stage_of_(graph.nodes.size(), kNoStage) {
    std::unordered_map<std::string_view, int> stages;
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      for (const std::string& name : plan.stages[stage].nodes) {
        stages[name] = static_cast<int>(stage);
      }
    }
    for (size_t index = 0; index < graph.nodes.size(); ++index) {
      const auto found = stages.find(graph.nodes[index].name);
      if (found != stages.end()) stage_of_[index] = found->second;
    }
  }

  std::string draw() {
    text_ = fmt::format("digraph {} {{\n  node [shape=box];\n", quoted(graph_.name));
    for (size_t stage = 0; stage < plan_.stages.size(); ++stage) {
      if (only_ && *only_ != static_cast<int>(stage)) continue;
      text_ += fmt::format("  subgraph cluster_{0} {{\n    label=\"stage {0}, ranks {1}\";\n",
                           stage, fmt::join(plan_.stages[stage].ranks, " "));
      nodes_of(static_cast<int>(stage), "    ");
      text_ += "  }\n";
    }
    if (!only_) nodes_of(kNoStage, "  ");  // what does not depend on rows: every stage has its own
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      for (const ir::ValueId value : graph_.operands({index})) edge(value, index);
    }
    for (const ir::ValueId value : graph_.outputs) {
      if (!shown_producer(value)) continue;
      text_ += fmt::format("  output [shape=ellipse];\n  {} -> output;\n", source(value));
    }
    return text_ + "}\n";
  }

 private:
  static constexpr int kNoStage = -1;

  bool shown(size_t node) const { return !only_ || stage_of_[node] == *only_; }
  bool shown_producer(ir::ValueId value) const {
    return graph_[value].kind == ir::ValueKind::result && shown(graph_[value].producer.index);
  }

  void nodes_of(int stage, std::string_view indent) {
    for (size_t index = 0; index < graph_.nodes.size(); ++index) {
      if (stage_of_[index] != stage) continue;
      const ir::Node& node = graph_.nodes[index];
      text_ += fmt::format("{}{} [label={}];\n", indent, quoted(node.name),
                           quoted(fmt::format("{}\n{}", node.name, node.op)));
    }
  }

  std::string source(ir::ValueId value) const {
    const ir::Value& content = graph_[value];
    if (content.kind != ir::ValueKind::result) return quoted("value " + content.name);
    return quoted(graph_[content.producer].name);
  }

  void edge(ir::ValueId value, uint32_t to) {
    const bool from_shown = shown_producer(value);
    if (!shown(to)) {
      const bool leaves = only_ && from_shown && stage_of_[to] != kNoStage;
      if (leaves) outside(value, fmt::format("to stage {}", stage_of_[to]), false, 0);
      return;
    }
    if (from_shown) {
      text_ += fmt::format("  {} -> {} [label={}];\n", source(value), quoted(graph_.nodes[to].name),
                           quoted(sizes(graph_[value])));
    } else {
      outside(value, graph_[value].name, true, to);
    }
  }

  /// A value that enters (the node `to`) or leaves what is shown.
  void outside(ir::ValueId value, const std::string& word, bool enters, uint32_t to) {
    const std::string other =
        quoted((enters ? "value " : "value " + graph_[value].name + " ") + word);
    if (declared_.insert(other).second) {
      text_ += fmt::format("  {} [shape=ellipse, label={}];\n", other,
                           quoted(fmt::format("{}\n{}", word, sizes(graph_[value]))));
      if (!enters) text_ += fmt::format("  {} -> {};\n", source(value), other);
    }
    if (enters) text_ += fmt::format("  {} -> {};\n", other, quoted(graph_.nodes[to].name));
  }

  const Plan& plan_;
  const ir::Graph& graph_;
  const std::optional<int> only_;
  std::vector<int> stage_of_;  // [node] kNoStage where every stage that needs it has its own
  std::set<std::string> declared_;
  std::string text_;
};

}  // namespace

std::string show_dot(const Plan& plan, const ir::Graph& graph, std::optional<int> stage) {
  return Picture(plan, graph, stage).draw();
}

}  // namespace rannc::plan
