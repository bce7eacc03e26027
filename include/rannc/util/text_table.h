#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rannc {

/// `text` with control characters as "?", so that a name from a file cannot draw on a terminal.
[[nodiscard]] std::string printable(std::string_view text);

/// A table of plain text. The cells of one column, the widest, may be broken into several lines.
class TextTable {
 public:
  enum class Side { left, right };

  /// An empty heading is a column like others.
  void column(std::string heading, Side side = Side::right);
  void row(std::vector<std::string> cells);  ///< as many as there are columns

  /// Lines of at most `width` columns where that is possible, each with a line end.
  [[nodiscard]] std::string text(size_t width) const;

 private:
  struct Column {
    Side side;
    size_t width;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_{1};  // the headings first
};

}  // namespace rannc
