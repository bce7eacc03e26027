#include "rannc/util/text_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kNarrowest = 12;  // of a broken column

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

/// Characters, which for most scripts are columns.
size_t characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

/// The bytes of the first `count` characters.
size_t prefix(std::string_view text, size_t count) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && count-- == 0) break;
  }
  return at;
}

/// Breaks after spaces; a word that is too long anywhere.
std::vector<std::string> broken(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (characters(text) > width) {
    size_t end = prefix(text, width);
    const size_t space = text.rfind(' ', end);
    const bool at_space = space != std::string_view::npos && space > 0;
    if (at_space) end = space;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + (at_space ? 1 : 0));
  }
  lines.emplace_back(text);
  return lines;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& byte : result) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x20 || code == 0x7F) byte = '?';
  }
  return result;
}

void TextTable::column(std::string heading, Side side) {
  columns_.push_back({side, characters(heading)});
  rows_.front().push_back(std::move(heading));
}

void TextTable::row(std::vector<std::string> cells) {
  RANNC_CHECK(cells.size() == columns_.size(), "a cell for each column");
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i] = printable(cells[i]);
    columns_[i].width = std::max(columns_[i].width, characters(cells[i]));
  }
  rows_.push_back(std::move(cells));
}

std::string TextTable::text(size_t width) const {
  std::vector<Column> columns = columns_;
  const auto total = [&] {
    size_t sum = kGap * (columns.size() - 1);
    for (const Column& column : columns) sum += column.width;
    return sum;
  };
  const auto widest = std::ranges::max_element(columns, {}, &Column::width);
  if (total() > width) {
    const size_t excess = total() - width;
    widest->width = std::max(kNarrowest, widest->width - std::min(widest->width, excess));
  }

  std::string text;
  const auto add_line = [&](std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  for (const std::vector<std::string>& row : rows_) {
    std::vector<std::vector<std::string>> cells;
    size_t lines = 1;
    for (size_t i = 0; i < columns.size(); ++i) {
      cells.push_back(broken(row[i], columns[i].width));
      lines = std::max(lines, cells.back().size());
    }
    for (size_t line = 0; line < lines; ++line) {
      std::string out;
      for (size_t i = 0; i < columns.size(); ++i) {
        const std::string cell = line < cells[i].size() ? cells[i][line] : "";
        const std::string space(columns[i].width - characters(cell), ' ');
        if (i > 0) out += std::string(kGap, ' ');
        out += columns[i].side == Side::right ? space + cell : cell + space;
      }
      add_line(std::move(out));
    }
    if (&row == rows_.data()) {
      std::string rule;
      for (const Column& column : columns) {
        rule += std::string(rule.empty() ? 0 : kGap, ' ') + std::string(column.width, '-');
      }
      add_line(std::move(rule));
    }
  }
  return text;
}

}  // namespace rannc
