#include "rannc/util/text_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

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

/// Breaks after spaces and at line ends; a word that is too long anywhere.
std::vector<std::string> broken(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  if (const size_t end = text.find('\n'); end != std::string_view::npos) {
    lines = broken(text.substr(0, end), width);
    std::ranges::move(broken(text.substr(end + 1), width), std::back_inserter(lines));
    return lines;
  }
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

std::string wrapped(std::string_view text, size_t width) {
  return fmt::format("{}", fmt::join(broken(text, width), "\n"));
}

std::string names_in_lines(std::string_view list, size_t width, size_t lines) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    size_t end = list.find(", ", begin);
    if (end == std::string_view::npos) end = list.size();
    names.emplace_back(list.substr(begin, end - begin));
    begin = end + 2;
  }
  // With the most names for which the text, what is left out counted in it, has so many lines.
  const size_t most = width * lines / 3 + 1;  // a letter, a comma and a space
  for (size_t shown = std::min(names.size(), most); shown > 0; --shown) {
    std::vector<std::string> text{""};
    for (size_t i = 0; i < shown; ++i) {
      const std::string name = names[i] + (i + 1 < shown ? "," : "");
      const bool fits = characters(text.back()) + 1 + characters(name) <= width;
      if (!text.back().empty() && fits) {
        text.back() += " " + name;
      } else {
        if (!text.back().empty()) text.emplace_back();
        text.back() = name;
      }
    }
    if (shown < names.size()) {
      const std::string more = fmt::format("and {} more", names.size() - shown);
      if (characters(text.back()) + 1 + characters(more) <= width) {
        text.back() += " " + more;
      } else {
        text.push_back(more);
      }
    }
    size_t count = 0;
    for (const std::string& line : text) count += broken(line, width).size();
    if (count <= lines || shown == 1) return fmt::format("{}", fmt::join(text, "\n"));
  }
  return std::string(list);
}

void TextTable::column(std::string heading, Side side) {
  size_t widest = 0;
  for (const std::string& line : broken(heading, std::string::npos)) {
    widest = std::max(widest, characters(line));
  }
  columns_.push_back({side, widest});
  rows_.front().push_back(std::move(heading));
}

void TextTable::row(std::vector<std::string> cells) {
  RANNC_CHECK(cells.size() == columns_.size(), "a cell for each column");
  for (size_t i = 0; i < cells.size(); ++i) {
    std::string cell;
    size_t widest = 0;
    for (const std::string& line : broken(cells[i], std::string::npos)) {
      if (!cell.empty()) cell += '\n';
      cell += printable(line);
      widest = std::max(widest, characters(line));
    }
    cells[i] = std::move(cell);
    columns_[i].width = std::max(columns_[i].width, widest);
  }
  rows_.push_back(std::move(cells));
}

size_t TextTable::width() const { return total(columns_); }

size_t TextTable::room(size_t column, size_t width) const {
  const size_t others = total(columns_) - columns_[column].width;
  return std::max(kNarrowest, width - std::min(width, others));
}

size_t TextTable::total(const std::vector<Column>& columns) {
  size_t sum = kGap * (columns.size() - 1);
  for (const Column& column : columns) sum += column.width;
  return sum;
}

std::string TextTable::text(size_t width) const {
  std::vector<Column> columns = columns_;
  const auto widest = std::ranges::max_element(columns, {}, &Column::width);
  if (total(columns) > width) {
    const size_t excess = total(columns) - width;
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
