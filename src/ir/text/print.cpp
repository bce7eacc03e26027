#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "ir/names.h"
#include "rannc/ir/text.h"

namespace rannc::ir {
namespace {

bool is_bare(std::string_view word) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == ':' || c == '/' || c == '<' ||
           c == '>' || c == '$';
  };
  return !word.empty() && word.back() != ':' && std::ranges::all_of(word, allowed);
}

std::string quoted(std::string_view word) {
  std::string text = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text + '"';
}

std::string word(std::string_view text) { return is_bare(text) ? std::string(text) : quoted(text); }

std::string integer(const AffineInt& value) {
  if (value.per_row == 0) return fmt::to_string(value.fixed);
  std::string text = value.per_row == 1    ? "B"
                     : value.per_row == -1 ? "-B"
                                           : fmt::format("{}*B", value.per_row);
  if (value.fixed != 0) text += fmt::format("{:+}", value.fixed);
  return text;
}

// The shortest digits that read back as the same number, and never like an integer.
std::string real(double value) {
  std::string text = fmt::to_string(value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <class Range, class Print>
std::string joined(const Range& range, Print print) {
  std::string text;
  for (const auto& element : range) {
    if (!text.empty()) text += ", ";
    text += print(element);
  }
  return text;
}

struct Printer {
  const Graph& graph;

  [[nodiscard]] std::string reference(ValueId id) const {
    return id.valid() ? '%' + word(graph[id].name) : "none";
  }
  [[nodiscard]] std::string references(const std::vector<ValueId>& ids) const {
    return joined(ids, [&](ValueId id) { return reference(id); });
  }

  std::string operator()(const None&) const { return "none"; }
  std::string operator()(ValueId id) const { return reference(id); }
  std::string operator()(const ValueList& list) const {
    return '{' + references(list.values) + '}';
  }
  std::string operator()(const AffineInt& value) const { return integer(value); }
  std::string operator()(double value) const { return real(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const Device& device) const {
    return fmt::format("device({})", word(device.name));
  }
  // An empty list does not show the type of its elements, so it says it; integers are the default.
  std::string operator()(const std::vector<AffineInt>& list) const {
    return '[' + joined(list, integer) + ']';
  }
  std::string operator()(const std::vector<double>& list) const {
    return '[' + (list.empty() ? "float" : joined(list, real)) + ']';
  }
  std::string operator()(const std::vector<bool>& list) const {
    const auto boolean = [](bool value) { return std::string(value ? "true" : "false"); };
    return '[' + (list.empty() ? "bool" : joined(list, boolean)) + ']';
  }
};

std::string rows_text(const Rows& rows) {
  std::vector<std::string> parts;
  if (rows.kind == RowKind::apart || rows.dim != 0) parts.push_back(fmt::to_string(rows.dim));
  if (rows.outer != 1) parts.push_back(fmt::format("outer={}", rows.outer));
  if (rows.inner != 1) parts.push_back(fmt::format("inner={}", rows.inner));
  if (!rows.proved) parts.emplace_back("unproved");
  const std::string_view kind = name_of(rows.kind, kRowKindNames);
  return parts.empty() ? std::string(kind) : fmt::format("{}({})", kind, fmt::join(parts, ", "));
}

std::string print_lines(const Graph& graph, bool with_sources) {
  std::string text = header_line(graph) + '\n';
  uint32_t printed = 0;
  // Values keep the order of their ids; a result waits for the node that makes it.
  const auto print_values = [&](uint32_t nodes_done) {
    for (; printed < graph.values.size(); ++printed) {
      const Value& value = graph.values[printed];
      const bool is_result = value.kind == ValueKind::result;
      if (is_result && value.producer.index >= nodes_done && nodes_done < graph.nodes.size())
        return;
      text += (is_result ? "    " : "  ") + value_line(graph, {printed}) + '\n';
    }
  };
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    print_values(index);
    text += "  " + node_line(graph, {index}, with_sources) + '\n';
  }
  print_values(static_cast<uint32_t>(graph.nodes.size()));
  return text;
}

// FNV-1a: short, the same on every machine, and far from cryptographic; it tells graphs apart that
// differ by mistake.
uint64_t hash(std::string_view bytes) {
  uint64_t state = 0xcbf29ce484222325U;
  for (const char c : bytes) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return state;
}

}  // namespace

std::string_view name(ValueKind kind) { return name_of(kind, kValueKindNames); }
std::string_view name(OpKind kind) { return name_of(kind, kOpKindNames); }
std::string_view name(RowKind kind) { return name_of(kind, kRowKindNames); }

std::string place(const SourceLine& source) {
  return source.file.empty() ? "unknown source" : fmt::format("{}:{}", source.file, source.line);
}

std::string module_place(const Node& node) {
  return fmt::format("module '{}', {}", node.module, place(node.source));
}

std::string header_line(const Graph& graph) {
  const Printer printer{graph};
  return fmt::format("graph {}({}) -> ({})", word(graph.name), printer.references(graph.inputs),
                     printer.references(graph.outputs));
}

std::string value_line(const Graph& graph, ValueId id) {
  const Value& value = graph[id];
  std::string text = fmt::format("{} {}: {}[{}]", name_of(value.kind, kValueKindNames),
                                 word(value.name), name(value.dtype), joined(value.dims, integer));
  if (value.rows != Rows{}) text += ' ' + rows_text(value.rows);
  if (value.requires_grad) text += " grad";
  if (value.on_host) text += " host";
  if (value.storage != id) text += " shares " + Printer{graph}.reference(value.storage);
  if (!value.aliases.empty()) text += " also " + joined(value.aliases, word);
  if (value.object.valid()) text += fmt::format(" #{}", value.object.index);
  return text;
}

std::string node_line(const Graph& graph, NodeId id, bool with_source) {
  const Node& node = graph[id];
  const Printer printer{graph};
  std::string text =
      fmt::format("node {} = {}({})", word(node.name), word(node.op),
                  joined(node.inputs, [&](const Argument& a) { return std::visit(printer, a); }));
  if (!node.outputs.empty()) text += " -> " + printer.references(node.outputs);
  if (!node.writes.empty()) text += " writes " + printer.references(node.writes);
  if (!node.like.empty()) text += " like " + word(node.like);
  if (node.kind != OpKind::dispatcher) text += fmt::format(" {}", name_of(node.kind, kOpKindNames));
  if (node.object.valid()) text += fmt::format(" #{}", node.object.index);
  if (!node.grad_enabled) text += " no_grad";
  if (node.by_share) text += " by_share";
  if (node.whole_batch) text += " whole_batch";
  if (!node.module.empty()) text += " in " + word(node.module);
  if (with_source && node.source != SourceLine{}) {
    text += fmt::format(" at {}:{}", quoted(node.source.file), node.source.line);
  }
  return text;
}

std::string print(const Graph& graph) { return print_lines(graph, true); }

std::string fingerprint(const Graph& graph) {
  return fmt::format("{:016x}", hash(print_lines(graph, false)));
}

}  // namespace rannc::ir
