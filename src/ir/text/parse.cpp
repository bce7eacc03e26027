#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <functional>
#include <unordered_map>

#include "ir/names.h"
#include "rannc/ir/text.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// Reads one line from left to right; every error names the line and the column.
class Cursor {
 public:
  Cursor(std::string_view line, int number) : line_(line), number_(number) {}

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string_view rest = line_.substr(at_);
    throw ConfigError(fmt::format(
        "graph text, line {}, column {}: expected {}, but found {}", number_, at_ + 1, expected,
        rest.empty() ? "the end of the line" : fmt::format("'{}'", rest.substr(0, 20))));
  }

  void skip_spaces() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t')) ++at_;
  }
  [[nodiscard]] bool at_end() {
    skip_spaces();
    return at_ == line_.size();
  }
  [[nodiscard]] bool next_is(std::string_view token) {
    skip_spaces();
    return line_.substr(at_).starts_with(token);
  }
  bool accept(std::string_view token) {
    if (!next_is(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("'{}'", token));
  }
  /// A keyword: not the beginning of a longer word.
  bool accept_word(std::string_view keyword) {
    if (!next_is(keyword)) return false;
    const size_t end = at_ + keyword.size();
    if (end < line_.size() && is_word(line_[end])) return false;
    at_ = end;
    return true;
  }

  /// A bare or quoted word.
  std::string word(const std::string& what) {
    skip_spaces();
    if (next_is("\"")) return string();
    size_t end = at_;
    while (end < line_.size() && is_word(line_[end])) ++end;
    // The ':' after the name in "input x: float32[B]" belongs to the line, not to the name.
    while (end > at_ && line_[end - 1] == ':') --end;
    if (end == at_) fail(what);
    const std::string found(line_.substr(at_, end - at_));
    at_ = end;
    return found;
  }

  std::string string() {
    expect("\"");
    std::string text;
    for (; at_ < line_.size() && line_[at_] != '"'; ++at_) {
      if (line_[at_] != '\\') {
        text += line_[at_];
        continue;
      }
      ++at_;
      if (at_ == line_.size()) break;
      text += line_[at_] == 'x' ? hex_escape() : line_[at_];
    }
    if (at_ == line_.size()) fail("a closing '\"'");
    ++at_;
    return text;
  }

  int64_t integer(const std::string& what) {
    skip_spaces();
    int64_t value = 0;
    const size_t sign = next_is("+") ? 1 : 0;
    const char* const begin = line_.data() + at_ + sign;
    const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), value);
    if (error != std::errc()) fail(what);
    at_ = static_cast<size_t>(end - line_.data());
    return value;
  }

  template <class Tag>
  Id<Tag> object() {
    const int64_t index = integer("the index of an object");
    if (index < 0 || index >= Id<Tag>::kNone) fail("the index of an object");
    return {static_cast<uint32_t>(index)};
  }

  /// Whether the number at the cursor is written as a real one: "1.0", "1e-05", "inf", "-nan".
  [[nodiscard]] bool next_is_real() {
    skip_spaces();
    size_t end = at_;
    while (end < line_.size() && (is_word(line_[end]) || line_[end] == '-' || line_[end] == '+')) {
      ++end;
    }
    return line_.substr(at_, end - at_).find_first_of(".ein") != std::string_view::npos;
  }
  double real() {
    skip_spaces();
    double value = 0;
    const auto [end, error] =
        std::from_chars(line_.data() + at_, line_.data() + line_.size(), value);
    if (error != std::errc()) fail("a number");
    at_ = static_cast<size_t>(end - line_.data());
    return value;
  }

  /// "4", "B", "2*B", "2*B+1", "-B-1".
  AffineInt affine() {
    skip_spaces();
    if (accept("B")) return {optional_fixed(), 1};
    if (accept("-B")) return {optional_fixed(), -1};
    const int64_t number = integer("an integer");
    if (!accept("*B")) return {number, 0};
    return {optional_fixed(), number};
  }

 private:
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':' ||
           c == '/' || c == '<' || c == '>' || c == '$';
  }
  char hex_escape() {
    unsigned value = 0;
    const char* const begin = line_.data() + at_ + 1;
    const char* const limit = line_.data() + std::min(line_.size(), at_ + 3);
    const auto [end, error] = std::from_chars(begin, limit, value, 16);
    if (error != std::errc() || end != begin + 2) fail("two hexadecimal digits after '\\x'");
    at_ += 2;
    return static_cast<char>(value);
  }
  int64_t optional_fixed() {
    return next_is("+") || next_is("-") ? integer("an integer after the rows") : 0;
  }

  std::string_view line_;
  int number_;
  size_t at_ = 0;
};

/// Values are collected first, as a node line comes before the lines of its results.
class Parser {
 public:
  explicit Parser(std::string_view text) {
    int number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const Cursor cursor(text.substr(begin, end - begin), ++number);
      begin = end + 1;
      sort_line(cursor);
    }
    if (headers_.size() != 1) {
      throw ConfigError(fmt::format(
          "graph text: needs exactly one line 'graph NAME(INPUTS) -> (OUTPUTS)', but has {}",
          headers_.size()));
    }
  }

  Graph run() {
    for (auto& [kind, cursor] : values_) parse_value(kind, cursor);
    // A value may share the storage of one that a later line declares; the names are known now.
    for (auto& [id, cursor] : shares_) graph_[id].storage = reference(cursor, "a value");
    for (Cursor& cursor : nodes_) parse_node(cursor);
    parse_header(headers_.front());
    return std::move(graph_);
  }

 private:
  void sort_line(Cursor cursor) {
    if (cursor.at_end() || cursor.next_is("//")) return;
    if (cursor.accept_word("graph")) {
      headers_.push_back(cursor);
    } else if (cursor.accept_word("node")) {
      nodes_.push_back(cursor);
    } else {
      for (const std::string_view name : kValueKindNames) {
        if (!cursor.accept_word(name)) continue;
        values_.emplace_back(*enum_from_name<ValueKind>(name, kValueKindNames), cursor);
        return;
      }
      cursor.fail("'graph', 'node', 'input', 'parameter', 'buffer', 'constant' or 'result'");
    }
  }

  ValueId reference(Cursor& cursor, const std::string& what) {
    cursor.skip_spaces();
    const Cursor start = cursor;
    if (!cursor.accept("%")) cursor.fail(what + " such as %x");
    const auto found = ids_.find(cursor.word(what));
    if (found == ids_.end()) start.fail("the name of a value that a line declares");
    return found->second;
  }
  ValueId reference_or_none(Cursor& cursor) {
    return cursor.accept_word("none") ? ValueId{} : reference(cursor, "a value or none");
  }
  std::vector<ValueId> references(Cursor& cursor) {
    std::vector<ValueId> list;
    do {
      list.push_back(reference_or_none(cursor));
    } while (cursor.accept(","));
    return list;
  }
  std::vector<ValueId> references_until(Cursor& cursor, std::string_view close) {
    if (cursor.accept(close)) return {};
    std::vector<ValueId> list = references(cursor);
    cursor.expect(close);
    return list;
  }

  void parse_header(Cursor& cursor) {
    graph_.name = cursor.next_is("(") ? "" : cursor.word("the graph's name");
    cursor.expect("(");
    graph_.inputs = references_until(cursor, ")");
    cursor.expect("->");
    cursor.expect("(");
    graph_.outputs = references_until(cursor, ")");
    if (!cursor.at_end()) cursor.fail("the end of the line");
  }

  void parse_value(ValueKind kind, Cursor& cursor) {
    Value value;
    value.kind = kind;
    cursor.skip_spaces();
    const Cursor start = cursor;
    value.name = cursor.word("a name");
    const ValueId id{static_cast<uint32_t>(graph_.values.size())};
    if (!ids_.emplace(value.name, id).second) start.fail("a name that no other value has");
    cursor.expect(":");
    value.dtype = parse_dtype(cursor);
    cursor.expect("[");
    value.dims = list_until_bracket<AffineInt>(cursor, &Cursor::affine);
    while (!cursor.at_end()) parse_property(value, id, cursor);
    graph_.add_value(std::move(value));
  }

  static DType parse_dtype(Cursor& cursor) {
    cursor.skip_spaces();
    const Cursor start = cursor;
    const std::string word = cursor.word("a dtype");
    try {
      return dtype_from_name(word);
    } catch (const ConfigError& error) {
      start.fail(fmt::format("a dtype ({})", error.what()));
    }
  }

  void parse_property(Value& value, ValueId id, Cursor& cursor) {
    if (cursor.accept_word("grad")) {
      value.requires_grad = true;
    } else if (cursor.accept_word("host")) {
      value.on_host = true;
    } else if (cursor.accept_word("shares")) {
      shares_.emplace_back(id, cursor);
      cursor.expect("%");
      cursor.word("a value");
    } else if (cursor.accept_word("also")) {
      do {
        value.aliases.push_back(cursor.word("a name"));
      } while (cursor.accept(","));
    } else if (cursor.accept("#")) {
      value.object = cursor.object<ObjectTag>();
    } else {
      value.rows = parse_rows(cursor);
    }
  }

  static Rows parse_rows(Cursor& cursor) {
    Rows rows;
    const Cursor start = cursor;
    const auto kind = enum_from_name<RowKind>(
        cursor.word("'grad', 'host', 'shares', 'also', '#' or rows"), kRowKindNames);
    if (!kind) start.fail("'grad', 'host', 'shares', 'also', '#' or rows such as apart(0)");
    rows.kind = *kind;
    if (!cursor.accept("(")) return rows;
    do {
      if (cursor.accept("outer=")) {
        rows.outer = cursor.integer("an integer");
      } else if (cursor.accept("inner=")) {
        rows.inner = cursor.integer("an integer");
      } else if (cursor.accept_word("unproved")) {
        rows.proved = false;
      } else {
        rows.dim = static_cast<int>(cursor.integer("a dimension, outer=, inner= or unproved"));
      }
    } while (cursor.accept(","));
    cursor.expect(")");
    return rows;
  }

  void parse_node(Cursor& cursor) {
    Node node;
    node.name = cursor.word("a name");
    cursor.expect("=");
    node.op = cursor.word("an operator");
    cursor.expect("(");
    if (!cursor.accept(")")) {
      do {
        node.inputs.push_back(parse_argument(cursor));
      } while (cursor.accept(","));
      cursor.expect(")");
    }
    while (!cursor.at_end()) parse_clause(node, cursor);
    graph_.add_node(std::move(node));
  }

  void parse_clause(Node& node, Cursor& cursor) {
    if (cursor.accept("->")) {
      node.outputs = references(cursor);
    } else if (cursor.accept_word("writes")) {
      node.writes = references(cursor);
    } else if (cursor.accept_word("like")) {
      node.like = cursor.word("an operator");
    } else if (cursor.accept_word("scripted")) {
      node.kind = OpKind::scripted;
    } else if (cursor.accept_word("python")) {
      node.kind = OpKind::python;
    } else if (cursor.accept("#")) {
      node.object = cursor.object<ObjectTag>();
    } else if (cursor.accept_word("no_grad")) {
      node.grad_enabled = false;
    } else if (cursor.accept_word("by_share")) {
      node.by_share = true;
    } else if (cursor.accept_word("whole_batch")) {
      node.whole_batch = true;
    } else if (cursor.accept_word("in")) {
      node.module = cursor.word("a module path");
    } else if (cursor.accept_word("at")) {
      node.source.file = cursor.string();
      cursor.expect(":");
      node.source.line = static_cast<int>(cursor.integer("a line number"));
    } else {
      cursor.fail(
          "'->', 'writes', 'like', 'scripted', 'python', '#', 'no_grad', 'by_share', "
          "'whole_batch', 'in' or 'at'");
    }
  }

  Argument parse_argument(Cursor& cursor) {
    if (cursor.accept_word("none")) return None{};
    if (cursor.next_is("%")) return reference(cursor, "a value");
    if (cursor.accept("{")) return ValueList{references_until(cursor, "}")};
    if (cursor.accept_word("true")) return true;
    if (cursor.accept_word("false")) return false;
    if (cursor.next_is("\"")) return cursor.string();
    if (cursor.accept_word("device")) {
      cursor.expect("(");
      Device device{cursor.word("a device")};
      cursor.expect(")");
      return device;
    }
    if (cursor.accept("[")) return parse_list(cursor);
    if (cursor.next_is_real()) return cursor.real();
    return cursor.affine();
  }

  Argument parse_list(Cursor& cursor) {
    if (cursor.accept_word("float")) {
      cursor.expect("]");
      return std::vector<double>{};
    }
    if (cursor.accept_word("bool")) {
      cursor.expect("]");
      return std::vector<bool>{};
    }
    if (cursor.next_is("true") || cursor.next_is("false")) {
      return list_until_bracket<bool>(cursor, [](Cursor& c) {
        if (c.accept_word("true")) return true;
        if (!c.accept_word("false")) c.fail("true or false");
        return false;
      });
    }
    if (!cursor.next_is("]") && cursor.next_is_real()) {
      return list_until_bracket<double>(cursor, [](Cursor& c) { return c.real(); });
    }
    return list_until_bracket<AffineInt>(cursor, [](Cursor& c) { return c.affine(); });
  }

  template <class T, class Parse>
  std::vector<T> list_until_bracket(Cursor& cursor, Parse parse) {
    std::vector<T> list;
    if (cursor.accept("]")) return list;
    do {
      list.push_back(std::invoke(parse, cursor));
    } while (cursor.accept(","));
    cursor.expect("]");
    return list;
  }

  Graph graph_;
  std::unordered_map<std::string, ValueId> ids_;
  std::vector<Cursor> headers_;
  std::vector<std::pair<ValueKind, Cursor>> values_;
  std::vector<std::pair<ValueId, Cursor>> shares_;
  std::vector<Cursor> nodes_;
};

}  // namespace

Graph parse(std::string_view text) { return Parser(text).run(); }

}  // namespace rannc::ir
