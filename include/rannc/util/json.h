#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Reading JSON files that people write: every error is a ConfigError that says where. The
// core's file readers share it.
namespace rannc::json {

struct Limits {
  size_t depth = 64;
  size_t string_bytes = size_t{1} << 20;
  size_t number_bytes = 1000;
  size_t elements = size_t{1} << 19;  ///< of one array or object
  size_t values = 20'000'000;         ///< of all kinds together
};

class Document;

/// The largest number that the planner's files may hold.
constexpr double kMostNumber = 1e100;

/// A value in a document. Cheap to copy; it lives no longer than its Document.
class Place {
 public:
  [[nodiscard]] std::string path() const;  ///< "$.nodes[3].inputs[0]"
  /// Throws ConfigError: "graph profile: $.nodes[3].op: <why>".
  [[noreturn]] void fail(const std::string& why) const;

  [[nodiscard]] bool is_object() const;
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_string() const;
  [[nodiscard]] bool is_null() const;

  // Each of these fails, saying what was expected and what is there, when the value is no such
  // thing.
  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] bool boolean() const;
  /// 0 or more, and so small that what is computed from such numbers is finite.
  [[nodiscard]] double number() const;
  [[nodiscard]] int64_t integer(int64_t lowest, int64_t highest) const;
  [[nodiscard]] std::vector<Place> elements() const;  ///< of an array
  [[nodiscard]] std::vector<Place> members() const;   ///< values of an object, in file order
  [[nodiscard]] const std::string& key() const;       ///< requires a member of an object

  [[nodiscard]] std::optional<Place> find(std::string_view key) const;  ///< of an object
  [[nodiscard]] Place at(std::string_view key) const;                   ///< fails when missing
  /// Fails unless this is an object with no other keys than these; names the closest.
  void allow_only(const std::vector<std::string_view>& keys) const;
  /// The first thing to check of a file: an object of this `format`. Returns its version, which is
  /// from 1 to `newest`.
  int64_t expect_format(std::string_view format, int64_t newest) const;

  /// The value as compact JSON text, keys in file order.
  [[nodiscard]] std::string dump() const;

 private:
  friend class Document;
  Place(const Document* document, uint32_t index) : document_(document), index_(index) {}
  const Document* document_;
  uint32_t index_;
};

/// A parsed JSON text. Duplicate keys, numbers that are not finite, invalid UTF-8 and anything
/// beyond the limits are errors.
class Document {
 public:
  /// Throws ConfigError with line and column. `what` names the file in errors: "graph profile";
  /// `root` begins the paths, for a text that is part of a larger one.
  Document(std::string_view text, std::string what, const Limits& limits = {},
           std::string root = "$");
  ~Document();
  Document(Document&&) = delete;

  [[nodiscard]] Place root() const { return {this, 0}; }

  struct Item;

 private:
  friend class Place;
  std::string what_;
  std::string root_;
  std::vector<Item> items_;  // in file order; an item's members follow it
  std::vector<std::string> texts_;
};

/// A number as JSON text writes it: without a fraction when it is whole; else the shortest text
/// that reads back as the same double.
[[nodiscard]] std::string number_text(double value);

/// `text` in quotes, escaped.
[[nodiscard]] std::string quote(std::string_view text);

}  // namespace rannc::json
