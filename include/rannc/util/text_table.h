#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rannc {

/// `text` with control characters as "?", so that a name from a file cannot draw on a terminal.
[[nodiscard]] std::string printable(std::string_view text);

/// `text` in lines of at most `width` characters where that is possible, broken at spaces.
[[nodiscard]] std::string wrapped(std::string_view text, size_t width);

/// The names of a list ("a, b, c") in at most `lines` lines of `width` characters, each name whole
/// where it fits, the last line ending with how many more there are.
[[nodiscard]] std::string names_in_lines(std::string_view list, size_t width, size_t lines);

/// A table of plain text. The cells of one column, the widest, may be broken into several lines;
/// a line end in a cell breaks it, too.
class TextTable {
 public:
  enum class Side { left, right };

  /// An empty heading is a column like others.
  void column(std::string heading, Side side = Side::right);
  void row(std::vector<std::string> cells);  ///< as many as there are columns

  /// What is left of `width` columns for `column`, the others being as wide as they are.
  [[nodiscard]] size_t room(size_t column, size_t width) const;
  /// Columns of the whole, were nothing broken.
  [[nodiscard]] size_t width() const;

  /// Lines of at most `width` columns where that is possible, each with a line end.
  [[nodiscard]] std::string text(size_t width) const;

 private:
  struct Column {
    Side side;
    size_t width;
  };
  static size_t total(const std::vector<Column>& columns);

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_{1};  // the headings first
};

}  // namespace rannc
