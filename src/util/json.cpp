#include "rannc/util/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::json {

enum class Type : uint8_t { null, boolean, integer, number, string, array, object };

struct Document::Item {
  static constexpr uint32_t kNone = UINT32_MAX;
  // Files have millions of values: 32 bytes for each.
  Type type = Type::null;
  uint32_t parent = kNone;
  uint32_t next = kNone;     // sibling
  uint32_t content = kNone;  // first member or element; index of a string's text
  uint32_t key = kNone;      // index of a text; members of objects only
  uint32_t position = 0;     // among its siblings
  union {
    int64_t whole = 0;  // integers within int64_t, and booleans
    double real;        // other numbers
  };

  [[nodiscard]] double number() const {
    return type == Type::integer ? static_cast<double>(whole) : real;
  }
};

namespace {

std::string_view name(Type type) {
  switch (type) {
    case Type::null:
      return "null";
    case Type::boolean:
      return "a boolean";
    case Type::integer:
      return "an integer";
    case Type::number:
      return "a number";
    case Type::string:
      return "a string";
    case Type::array:
      return "an array";
    case Type::object:
      return "an object";
  }
  return "nothing";
}

// nlohmann's messages begin with "[json.exception.parse_error.101] ", which is of no use to
// readers.
std::string_view without_prefix(std::string_view message) {
  const size_t end = message.find("] ");
  return message.starts_with("[json.exception") && end != std::string_view::npos
             ? message.substr(end + 2)
             : message;
}

std::string line_and_column(std::string_view text, size_t position) {
  const std::string_view before = text.substr(0, position);
  const auto line = 1 + std::ranges::count(before, '\n');
  const size_t start = before.rfind('\n');
  const size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1);
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

namespace {

/// nlohmann's messages quote what they read last, however long it is.
std::string clipped(std::string_view message) {
  constexpr size_t kMost = 300;
  if (message.size() <= kMost) return std::string(message);
  size_t end = kMost;
  while ((static_cast<unsigned char>(message[end]) & 0xC0U) == 0x80U) --end;
  return std::string(message.substr(0, end)) + "...";
}

/// Throws for a string or number beyond the limits, before a parser copies it.
void check_tokens(std::string_view text, const std::string& what, const Limits& limits) {
  const auto check_string = [&](size_t begin, size_t end) {
    if (end - begin <= limits.string_bytes) return;
    throw ConfigError(fmt::format("{}: {}: a string of more than {} bytes", what,
                                  line_and_column(text, begin), limits.string_bytes));
  };
  const auto check_number = [&](size_t begin, size_t end) {
    if (end - begin <= limits.number_bytes) return;
    throw ConfigError(fmt::format("{}: {}: a number of more than {} bytes", what,
                                  line_and_column(text, begin + 1), limits.number_bytes));
  };
  constexpr std::string_view kBetween = " \t\r\n,:[]{}";
  size_t begin = 0;  // of a number or word
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      const size_t first = at + 1;
      for (at = first; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\') ++at;
      }
      check_string(first, std::min(at, text.size()));
      begin = at + 1;
    } else if (kBetween.find(text[at]) != std::string_view::npos) {
      check_number(begin, at);
      begin = at + 1;
    }
  }
  if (begin < text.size()) check_number(begin, text.size());
}

/// Receives nlohmann's SAX events and appends the items. nlohmann's own tree would keep the last of
/// two equal keys and let a negative number pass as a huge unsigned one.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const std::string& what, const std::string& root,
          const Limits& limits, std::vector<Document::Item>& items, std::vector<std::string>& texts)
      : source_(text), what_(what), root_(root), limits_(limits), items_(items), texts_(texts) {}

  bool null() override { return add(Type::null); }
  bool boolean(bool value) override { return add(Type::boolean, value); }
  bool number_integer(number_integer_t value) override { return add(Type::integer, value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
      return add_real(static_cast<double>(value));
    }
    return add(Type::integer, static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    // 4.0 and 1e9 are integers, too: other programs write them so.
    const bool whole = std::abs(value) < 9e15 && value == std::floor(value);
    return whole ? add(Type::integer, static_cast<int64_t>(value)) : add_real(value);
  }
  bool string(string_t& value) override {
    add(Type::string);
    items_.back().content = keep(std::move(value));
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Type::object); }
  bool start_array(size_t) override { return open(Type::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    if (open_.back().has(value, texts_)) fail(fmt::format("key '{}' occurs twice", value));
    key_ = keep_key(value);
    open_.back().keys.push_back(key_);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string message = clipped(without_prefix(error.what()));
    const bool has_place = message.starts_with("parse error at line");
    throw ConfigError(
        has_place ? fmt::format("{}: {}", what_, message.substr(std::size("parse error at")))
                  : fmt::format("{}: {}: {}", what_, line_and_column(source_, position), message));
  }

 private:
  struct Open {
    uint32_t index;
    uint32_t last = Document::Item::kNone;
    std::vector<uint32_t> keys;  // as texts

    // Nearly all objects have few keys; the set is for the others.
    static constexpr size_t kFew = 16;
    std::unordered_set<std::string> many;
    bool has(const std::string& key, const std::vector<std::string>& texts) {
      if (keys.size() <= kFew) {
        return std::ranges::any_of(keys, [&](uint32_t known) { return texts[known] == key; });
      }
      for (size_t i = many.size(); i < keys.size(); ++i) many.insert(texts[keys[i]]);
      return many.contains(key);
    }
  };

  [[noreturn]] void fail(const std::string& why) const {
    std::string where = root_;
    for (size_t i = 1; i < open_.size(); ++i) {
      const Document::Item& item = items_[open_[i].index];
      where += item.key == Document::Item::kNone ? fmt::format("[{}]", item.position)
                                                 : "." + texts_[item.key];
    }
    throw ConfigError(fmt::format("{}: {}: {}", what_, where, why));
  }

  uint32_t keep(std::string text) {
    texts_.push_back(std::move(text));
    return static_cast<uint32_t>(texts_.size() - 1);
  }

  /// The same few keys come again and again; the first ones are kept once.
  uint32_t keep_key(const std::string& key) {
    constexpr size_t kMostShared = 100;
    if (const auto found = keys_.find(key); found != keys_.end()) return found->second;
    const uint32_t text = keep(key);
    if (keys_.size() < kMostShared) keys_.emplace(key, text);
    return text;
  }

  bool add_real(double value) {
    add(Type::number);
    items_.back().real = value;
    return true;
  }

  bool add(Type type, int64_t whole = 0) {
    if (items_.size() >= limits_.values) {
      fail(fmt::format("more than {} values", limits_.values));
    }
    Document::Item item;
    item.type = type;
    item.whole = whole;
    item.key = std::exchange(key_, Document::Item::kNone);
    const auto index = static_cast<uint32_t>(items_.size());
    if (!open_.empty()) {
      Open& parent = open_.back();
      item.parent = parent.index;
      if (parent.last == Document::Item::kNone) {
        items_[parent.index].content = index;
      } else {
        items_[parent.last].next = index;
        item.position = items_[parent.last].position + 1;
        if (item.position >= limits_.elements) {
          fail(fmt::format("has more than {} elements", limits_.elements));
        }
      }
      parent.last = index;
    }
    items_.push_back(item);
    return true;
  }

  bool open(Type type) {
    if (open_.size() >= limits_.depth) {
      fail(fmt::format("nested deeper than {} levels", limits_.depth));
    }
    add(type);
    open_.push_back({static_cast<uint32_t>(items_.size() - 1), Document::Item::kNone, {}, {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view source_;
  const std::string& what_;
  const std::string& root_;
  const Limits& limits_;
  std::vector<Document::Item>& items_;
  std::vector<std::string>& texts_;
  std::vector<Open> open_;
  uint32_t key_ = Document::Item::kNone;
  std::unordered_map<std::string, uint32_t> keys_;  // texts
};

}  // namespace

Document::Document(std::string_view text, std::string what, const Limits& limits, std::string root)
    : what_(std::move(what)), root_(std::move(root)) {
  check_tokens(text, what_, limits);
  Builder builder(text, what_, root_, limits, items_, texts_);
  nlohmann::json::sax_parse(text, &builder);
}

Document::~Document() = default;

std::string Place::path() const {
  std::vector<std::string> parts;
  for (uint32_t at = index_; document_->items_[at].parent != Document::Item::kNone;
       at = document_->items_[at].parent) {
    const Document::Item& item = document_->items_[at];
    parts.push_back(item.key == Document::Item::kNone ? fmt::format("[{}]", item.position)
                                                      : "." + document_->texts_[item.key]);
  }
  std::string path = document_->root_;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) path += *part;
  return path;
}

void Place::fail(const std::string& why) const {
  throw ConfigError(fmt::format("{}: {}: {}", document_->what_, path(), why));
}

bool Place::is_object() const { return document_->items_[index_].type == Type::object; }
bool Place::is_array() const { return document_->items_[index_].type == Type::array; }
bool Place::is_string() const { return document_->items_[index_].type == Type::string; }
bool Place::is_null() const { return document_->items_[index_].type == Type::null; }

const std::string& Place::string() const {
  const Document::Item& item = document_->items_[index_];
  if (item.type != Type::string) fail(fmt::format("expected a string, found {}", name(item.type)));
  return document_->texts_[item.content];
}

bool Place::boolean() const {
  const Document::Item& item = document_->items_[index_];
  if (item.type != Type::boolean) {
    fail(fmt::format("expected true or false, found {}", name(item.type)));
  }
  return item.whole != 0;
}

double Place::number() const {
  const Document::Item& item = document_->items_[index_];
  if (item.type != Type::number && item.type != Type::integer) {
    fail(fmt::format("expected a number, found {}", name(item.type)));
  }
  const double value = item.number();
  if (value < 0) fail(fmt::format("expected a number of at least 0, found {}", value));
  if (value > kMostNumber) {
    fail(fmt::format("expected a number of at most {}, found {}", kMostNumber, value));
  }
  return value;
}

int64_t Place::integer(int64_t lowest, int64_t highest) const {
  const Document::Item& item = document_->items_[index_];
  if (item.type == Type::number) fail(fmt::format("expected an integer, found {}", item.real));
  if (item.type != Type::integer)
    fail(fmt::format("expected an integer, found {}", name(item.type)));
  if (item.whole < lowest) {
    fail(fmt::format("expected an integer of at least {}, found {}", lowest, item.whole));
  }
  if (item.whole > highest) {
    fail(fmt::format("expected an integer of at most {}, found {}", highest, item.whole));
  }
  return item.whole;
}

std::vector<Place> Place::elements() const {
  if (!is_array()) {
    fail(fmt::format("expected an array, found {}", name(document_->items_[index_].type)));
  }
  std::vector<Place> found;
  for (uint32_t at = document_->items_[index_].content; at != Document::Item::kNone;
       at = document_->items_[at].next) {
    found.push_back({document_, at});
  }
  return found;
}

std::vector<Place> Place::members() const {
  if (!is_object()) {
    fail(fmt::format("expected an object, found {}", name(document_->items_[index_].type)));
  }
  std::vector<Place> found;
  for (uint32_t at = document_->items_[index_].content; at != Document::Item::kNone;
       at = document_->items_[at].next) {
    found.push_back({document_, at});
  }
  return found;
}

const std::string& Place::key() const {
  const uint32_t key = document_->items_[index_].key;
  RANNC_CHECK(key != Document::Item::kNone, "no member of an object: " + path());
  return document_->texts_[key];
}

std::optional<Place> Place::find(std::string_view key) const {
  if (!is_object()) {
    fail(fmt::format("expected an object, found {}", name(document_->items_[index_].type)));
  }
  for (uint32_t at = document_->items_[index_].content; at != Document::Item::kNone;
       at = document_->items_[at].next) {
    if (document_->texts_[document_->items_[at].key] == key) return Place(document_, at);
  }
  return std::nullopt;
}

Place Place::at(std::string_view key) const {
  const std::optional<Place> found = find(key);
  if (!found) fail(fmt::format("key '{}' is missing", key));
  return *found;
}

void Place::allow_only(const std::vector<std::string_view>& keys) const {
  for (const Place& member : members()) {
    const std::string_view key = member.key();
    if (std::ranges::find(keys, key) != keys.end()) continue;
    fail(fmt::format("unknown key '{}'; did you mean '{}'?", member.key(),
                     closest(member.key(), std::vector<std::string>(keys.begin(), keys.end()))));
  }
}

int64_t Place::expect_format(std::string_view format, int64_t newest) const {
  const Place found = at("format");
  if (found.string() != format) {
    found.fail(fmt::format("expected '{}', found '{}'", format, found.string()));
  }
  const Place number = at("version");
  const int64_t version = number.integer(0, INT64_MAX);
  if (version < 1 || version > newest) {
    number.fail(fmt::format("version {} of '{}' is unknown; this program reads version{}", version,
                            format, newest > 1 ? fmt::format("s 1 to {}", newest) : " 1"));
  }
  return version;
}

std::string Place::dump() const {
  const Document::Item& item = document_->items_[index_];
  switch (item.type) {
    case Type::null:
      return "null";
    case Type::boolean:
      return item.whole != 0 ? "true" : "false";
    case Type::integer:
      return std::to_string(item.whole);
    case Type::number:
      return number_text(item.real);
    case Type::string:
      return quote(string());
    case Type::array:
    case Type::object:
      break;
  }
  const bool object = item.type == Type::object;
  std::string text(1, object ? '{' : '[');
  for (const Place& child : object ? members() : elements()) {
    if (text.size() > 1) text += ',';
    if (object) text += quote(child.key()) + ":";
    text += child.dump();
  }
  text += object ? '}' : ']';
  return text;
}

std::string number_text(double value) {
  if (std::abs(value) < 9e15 && value == std::floor(value)) {
    return std::to_string(static_cast<int64_t>(value));
  }
  return nlohmann::json(value).dump();
}

std::string quote(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace rannc::json
