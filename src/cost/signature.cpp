#include <fmt/format.h>

#include <algorithm>

#include "rannc/cost/cost_table.h"
#include "rannc/util/json.h"

namespace rannc::cost {
namespace {

using ir::AffineInt;

/// Writes arguments; operands by what they are, not by name, but the same operand twice shows.
class Writer {
 public:
  explicit Writer(const ir::Graph& graph) : graph_(graph) {}

  std::string take() { return std::move(text_); }
  void text(std::string_view part) { text_ += part; }

  void operator()(const ir::None&) { text_ += "None"; }
  void operator()(ir::ValueId value) { operand(value); }
  void operator()(const ir::ValueList& list) {
    text_ += '[';
    for (ir::ValueId value : list.values) {
      if (value.valid()) {
        operand(value);
      } else {
        text_ += "None";
      }
      text_ += ',';
    }
    text_ += ']';
  }
  void operator()(const AffineInt& number) { integer(number); }
  void operator()(double number) { fmt::format_to(std::back_inserter(text_), "{}f", number); }
  void operator()(bool value) { text_ += value ? "true" : "false"; }
  void operator()(const std::string& value) { text_ += json::quote(value); }
  void operator()(const ir::Device& device) { text_ += "device " + device.name; }
  void operator()(const std::vector<AffineInt>& list) { sequence(list); }
  void operator()(const std::vector<double>& list) { sequence(list); }
  void operator()(const std::vector<bool>& list) {
    text_ += '[';
    for (bool value : list) text_ += value ? "true," : "false,";
    text_ += ']';
  }

  void tensor(ir::ValueId id) {
    const ir::Value& value = graph_[id];
    text_ += ir::name(value.dtype);
    sequence(value.dims);
    if (value.requires_grad) text_ += "grad";
  }

 private:
  void operand(ir::ValueId id) {
    const auto found = std::ranges::find(seen_, id);
    if (found != seen_.end()) {
      fmt::format_to(std::back_inserter(text_), "%{}", found - seen_.begin());
      return;
    }
    seen_.push_back(id);
    tensor(id);
  }
  void integer(const AffineInt& number) {
    fmt::format_to(std::back_inserter(text_), "{}", number.fixed);
    if (number.depends_on_rows()) {
      fmt::format_to(std::back_inserter(text_), "+{}b", number.per_row);
    }
  }
  template <class Element>
  void sequence(const std::vector<Element>& list) {
    text_ += '[';
    for (const Element& element : list) {
      if constexpr (std::is_same_v<Element, AffineInt>) {
        integer(element);
      } else {
        (*this)(element);
      }
      text_ += ',';
    }
    text_ += ']';
  }

  const ir::Graph& graph_;
  std::string text_;
  std::vector<ir::ValueId> seen_;
};

}  // namespace

std::string signature(const ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph[id];
  Writer writer(graph);
  writer.text(node.op);
  // Scripted and Python functions are told apart by their objects.
  if (node.object.valid()) writer.text(fmt::format("#{}", node.object.index));
  writer.text(node.grad_enabled ? "(" : " no_grad(");
  for (const ir::Argument& argument : node.inputs) {
    std::visit(writer, argument);
    writer.text(" ");
  }
  writer.text(")->");
  for (ir::ValueId output : node.outputs) {
    if (output.valid()) {
      writer.tensor(output);
    } else {
      writer.text("undefined");
    }
    writer.text(" ");
  }
  return writer.take();
}

}  // namespace rannc::cost
