#include "rannc/util/json.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "ir/names.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

template <class Range, class Write>
std::string array(const Range& range, Write write) {
  std::string text;
  for (const auto& element : range) {
    if (!text.empty()) text += ',';
    text += write(element);
  }
  return '[' + text + ']';
}

std::string write_affine(const AffineInt& value) {
  return value.per_row == 0 ? fmt::to_string(value.fixed)
                            : fmt::format("[{},{}]", value.fixed, value.per_row);
}
std::string write_bool(bool value) { return value ? "true" : "false"; }
// As text, because JSON has no infinities and does not tell 1.0 from 1.
std::string write_real(double value) { return fmt::format("\"{}\"", value); }
std::string write_id(ValueId id) { return id.valid() ? fmt::to_string(id.index) : "null"; }

struct ArgumentWriter {
  std::string operator()(const None&) const { return "null"; }
  std::string operator()(ValueId id) const { return fmt::format("{{\"value\":{}}}", id.index); }
  std::string operator()(const ValueList& list) const {
    return fmt::format("{{\"values\":{}}}", array(list.values, write_id));
  }
  std::string operator()(const AffineInt& value) const { return write_affine(value); }
  std::string operator()(double value) const {
    return fmt::format("{{\"float\":{}}}", write_real(value));
  }
  std::string operator()(bool value) const { return write_bool(value); }
  std::string operator()(const std::string& value) const { return json::quote(value); }
  std::string operator()(const Device& device) const {
    return fmt::format("{{\"device\":{}}}", json::quote(device.name));
  }
  std::string operator()(const std::vector<AffineInt>& list) const {
    return fmt::format("{{\"ints\":{}}}", array(list, write_affine));
  }
  std::string operator()(const std::vector<double>& list) const {
    return fmt::format("{{\"floats\":{}}}", array(list, write_real));
  }
  std::string operator()(const std::vector<bool>& list) const {
    return fmt::format("{{\"bools\":{}}}", array(list, write_bool));
  }
};

// Members that have their default are left out.
std::string write_value(const Graph& graph, ValueId id) {
  const Value& value = graph[id];
  std::string text = fmt::format("{{\"name\":{},\"kind\":\"{}\",\"dtype\":\"{}\",\"dims\":{}",
                                 json::quote(value.name), name_of(value.kind, kValueKindNames),
                                 name(value.dtype), array(value.dims, write_affine));
  if (value.requires_grad) text += ",\"requires_grad\":true";
  if (value.on_host) text += ",\"host\":true";
  if (value.rows != Rows{}) {
    const Rows& rows = value.rows;
    text += fmt::format(
        ",\"rows\":{{\"kind\":\"{}\",\"dim\":{},\"outer\":{},\"inner\":{},\"proved\":{}}}",
        name_of(rows.kind, kRowKindNames), rows.dim, rows.outer, rows.inner, rows.proved);
  }
  if (!value.aliases.empty()) text += ",\"aliases\":" + array(value.aliases, json::quote);
  if (value.storage != id) text += fmt::format(",\"storage\":{}", value.storage.index);
  if (value.object.valid()) text += fmt::format(",\"object\":{}", value.object.index);
  return text + '}';
}

std::string write_node(const Node& node) {
  std::string text = fmt::format(
      "{{\"name\":{},\"op\":{},\"inputs\":{},\"outputs\":{}", json::quote(node.name),
      json::quote(node.op),
      array(node.inputs, [](const Argument& a) { return std::visit(ArgumentWriter(), a); }),
      array(node.outputs, write_id));
  if (!node.writes.empty()) text += ",\"writes\":" + array(node.writes, write_id);
  if (!node.like.empty()) text += ",\"like\":" + json::quote(node.like);
  if (node.kind != OpKind::dispatcher) {
    text += fmt::format(",\"kind\":\"{}\"", name_of(node.kind, kOpKindNames));
  }
  if (node.object.valid()) text += fmt::format(",\"object\":{}", node.object.index);
  if (!node.grad_enabled) text += ",\"grad_enabled\":false";
  if (node.by_share) text += ",\"by_share\":true";
  if (node.whole_batch) text += ",\"whole_batch\":true";
  if (!node.module.empty()) text += ",\"module\":" + json::quote(node.module);
  if (node.source != SourceLine{}) {
    text += fmt::format(",\"source\":{{\"file\":{},\"line\":{}}}", json::quote(node.source.file),
                        node.source.line);
  }
  return text + '}';
}

/// Reads what the functions above write, from a file that anyone may have edited.
class Reader {
 public:
  explicit Reader(json::Place root) : root_(root) {}

  Graph run() {
    root_.expect_format("rannc-graph", 1);
    root_.allow_only({"format", "version", "name", "inputs", "outputs", "values", "nodes"});
    Graph graph;
    graph.name = root_.at("name").string();
    const std::vector<json::Place> values = root_.at("values").elements();
    value_count_ = static_cast<int64_t>(values.size());
    for (const json::Place& place : values) graph.add_value(value(place));
    for (const json::Place& place : root_.at("nodes").elements()) {
      Node read = node(place);
      graph.add_node(std::move(read));
    }
    graph.inputs = ids(root_.at("inputs"));
    graph.outputs = ids(root_.at("outputs"));
    return graph;
  }

 private:
  [[nodiscard]] ValueId id(const json::Place& place) const {
    if (value_count_ == 0) place.fail("names a value of a graph without values");
    return {static_cast<uint32_t>(place.integer(0, value_count_ - 1))};
  }
  [[nodiscard]] ValueId id_or_null(const json::Place& place) const {
    return place.is_null() ? ValueId{} : id(place);
  }
  [[nodiscard]] std::vector<ValueId> ids(const json::Place& place) const {
    std::vector<ValueId> list;
    for (const json::Place& element : place.elements()) list.push_back(id(element));
    return list;
  }
  [[nodiscard]] std::vector<ValueId> ids_or_null(const json::Place& place) const {
    std::vector<ValueId> list;
    for (const json::Place& element : place.elements()) list.push_back(id_or_null(element));
    return list;
  }
  static ObjectId object(const json::Place& place) {
    return {static_cast<uint32_t>(place.integer(0, ObjectId::kNone - 1))};
  }
  static int small(const json::Place& place) {
    return static_cast<int>(
        place.integer(std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  }
  static AffineInt affine(const json::Place& place) {
    if (!place.is_array()) return {place.integer(kLowest, kHighest), 0};
    const std::vector<json::Place> parts = place.elements();
    if (parts.size() != 2) place.fail("an integer that depends on the rows is [fixed, per row]");
    return {parts[0].integer(kLowest, kHighest), parts[1].integer(kLowest, kHighest)};
  }
  static double real(const json::Place& place) {
    const std::string& text = place.string();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      place.fail(fmt::format("'{}' is no number", text));
    }
    return value;
  }
  template <class Enum, size_t N>
  static Enum enumerator(const json::Place& place, const std::array<std::string_view, N>& names) {
    const auto found = enum_from_name<Enum>(place.string(), names);
    if (!found) {
      place.fail(fmt::format("'{}' is none of {}", place.string(), fmt::join(names, ", ")));
    }
    return *found;
  }
  template <class T, class Read>
  static std::vector<T> list(const json::Place& place, Read read) {
    std::vector<T> result;
    for (const json::Place& element : place.elements()) result.push_back(read(element));
    return result;
  }

  static Rows rows(const json::Place& place) {
    place.allow_only({"kind", "dim", "outer", "inner", "proved"});
    return {.kind = enumerator<RowKind>(place.at("kind"), kRowKindNames),
            .dim = small(place.at("dim")),
            .outer = place.at("outer").integer(kLowest, kHighest),
            .inner = place.at("inner").integer(kLowest, kHighest),
            .proved = place.at("proved").boolean()};
  }

  [[nodiscard]] Value value(const json::Place& place) const {
    place.allow_only({"name", "kind", "dtype", "dims", "requires_grad", "host", "rows", "aliases",
                      "storage", "object"});
    Value value;
    value.name = place.at("name").string();
    value.kind = enumerator<ValueKind>(place.at("kind"), kValueKindNames);
    value.dtype = dtype(place.at("dtype"));
    value.dims = list<AffineInt>(place.at("dims"), affine);
    if (const auto found = place.find("requires_grad")) value.requires_grad = found->boolean();
    if (const auto found = place.find("host")) value.on_host = found->boolean();
    if (const auto found = place.find("rows")) value.rows = rows(*found);
    if (const auto found = place.find("storage")) value.storage = id(*found);
    if (const auto found = place.find("object")) value.object = object(*found);
    if (const auto found = place.find("aliases")) {
      value.aliases = list<std::string>(*found, [](const json::Place& p) { return p.string(); });
    }
    return value;
  }

  static DType dtype(const json::Place& place) {
    try {
      return dtype_from_name(place.string());
    } catch (const ConfigError& error) {
      place.fail(error.what());
    }
  }

  [[nodiscard]] Node node(const json::Place& place) const {
    place.allow_only({"name", "op", "inputs", "outputs", "writes", "like", "kind", "object",
                      "grad_enabled", "by_share", "whole_batch", "module", "source"});
    Node node;
    node.name = place.at("name").string();
    node.op = place.at("op").string();
    for (const json::Place& input : place.at("inputs").elements()) {
      node.inputs.push_back(argument(input));
    }
    node.outputs = ids_or_null(place.at("outputs"));
    if (const auto found = place.find("writes")) node.writes = ids(*found);
    if (const auto found = place.find("like")) node.like = found->string();
    if (const auto found = place.find("kind")) {
      node.kind = enumerator<OpKind>(*found, kOpKindNames);
    }
    if (const auto found = place.find("object")) node.object = object(*found);
    if (const auto found = place.find("grad_enabled")) node.grad_enabled = found->boolean();
    if (const auto found = place.find("by_share")) node.by_share = found->boolean();
    if (const auto found = place.find("whole_batch")) node.whole_batch = found->boolean();
    if (const auto found = place.find("module")) node.module = found->string();
    if (const auto found = place.find("source")) {
      found->allow_only({"file", "line"});
      node.source = {found->at("file").string(), small(found->at("line"))};
    }
    return node;
  }

  [[nodiscard]] Argument argument(const json::Place& place) const {
    if (place.is_null()) return None{};
    if (place.is_string()) return place.string();
    if (place.is_array()) return affine(place);
    if (!place.is_object()) return scalar(place);
    const std::vector<json::Place> members = place.members();
    if (members.size() == 1) {
      const json::Place& member = members.front();
      const std::string& key = member.key();
      if (key == "value") return id(member);
      if (key == "values") return ValueList{ids_or_null(member)};
      if (key == "float") return real(member);
      if (key == "device") return Device{member.string()};
      if (key == "ints") return list<AffineInt>(member, affine);
      if (key == "floats") return list<double>(member, real);
      if (key == "bools") {
        return list<bool>(member, [](const json::Place& p) { return p.boolean(); });
      }
    }
    place.fail("an argument has one key: value, values, float, device, ints, floats or bools");
  }

  static Argument scalar(const json::Place& place) {
    const std::string text = place.dump();
    if (text == "true" || text == "false") return text == "true";
    return affine(place);
  }

  json::Place root_;
  int64_t value_count_ = 0;
};

}  // namespace

std::string to_json(const Graph& graph) {
  std::string text = fmt::format(
      "{{\"format\":\"rannc-graph\",\"version\":1,\"name\":{},\n\"inputs\":{},\"outputs\":{},\n"
      "\"values\":[",
      json::quote(graph.name), array(graph.inputs, write_id), array(graph.outputs, write_id));
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    text += (index == 0 ? "\n" : ",\n") + write_value(graph, {index});
  }
  text += "],\n\"nodes\":[";
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    text += (index == 0 ? "\n" : ",\n") + write_node(graph.nodes[index]);
  }
  return text + "]}\n";
}

Graph graph_from_json(std::string_view text) {
  // A graph has about ten JSON values for each node and value.
  const json::Document document(text, "graph", {.elements = 200'000'000, .values = 200'000'000});
  return Reader(document.root()).run();
}

}  // namespace rannc::ir
