#include "plan/module_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace rannc::plan {
namespace {

using Counts = std::unordered_map<std::string_view, int>;

std::string_view parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

/// Operators in each module and below it.
Counts count(const std::vector<std::string>& paths) {
  Counts counts;
  for (std::string_view path : paths) {
    for (;; path = parent(path)) {
      ++counts[path];
      if (path.empty()) break;
    }
  }
  return counts;
}

struct Numbered {
  std::string_view prefix;  // "layers."
  int number;
};
std::optional<Numbered> numbered(std::string_view path) {
  const size_t dot = path.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return Numbered{path.substr(0, path.size() - last.size()), number};
}

/// "layers.0", "layers.1", "layers.2" -> "layers.0-2".
std::vector<std::string> fold(const std::vector<std::string_view>& paths) {
  std::vector<std::string> folded;
  for (size_t first = 0; first < paths.size();) {
    size_t next = first + 1;
    const auto start = numbered(paths[first]);
    while (start && next < paths.size()) {
      const auto other = numbered(paths[next]);
      const int expected = start->number + static_cast<int>(next - first);
      if (!other || other->prefix != start->prefix || other->number != expected) break;
      ++next;
    }
    folded.push_back(next - first == 1
                         ? std::string(paths[first])
                         : fmt::format("{}-{}", paths[first], numbered(paths[next - 1])->number));
    first = next;
  }
  return folded;
}

}  // namespace

std::string module_names(const std::vector<std::string>& mine,
                         const std::vector<std::string>& all) {
  const Counts held = count(mine);
  const Counts total = count(all);
  const auto is_whole = [&](std::string_view path) { return held.at(path) == total.at(path); };

  std::vector<std::string_view> whole, parts;
  std::unordered_set<std::string_view> seen;
  for (std::string_view path : mine) {
    const bool in_part = !is_whole(path);
    while (!path.empty() && is_whole(path) && is_whole(parent(path))) path = parent(path);
    if (seen.insert(path).second) (in_part ? parts : whole).push_back(path);
  }

  // Operators between whole modules, such as a residual sum, are not worth a name of their own.
  const auto has_whole_child = [&](std::string_view path) {
    return std::ranges::any_of(whole, [&](std::string_view child) {
      return path.empty() ||
             (child.starts_with(path) && child.substr(path.size()).starts_with('.'));
    });
  };
  std::erase_if(parts, has_whole_child);

  std::vector<std::string> names = fold(whole);
  for (std::string_view path : parts) {
    names.push_back(fmt::format("{} (part)", path.empty() ? "model" : path));
  }
  std::string text;
  for (const std::string& name : names) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name.empty() ? "model" : name);
  }
  return text;
}

std::string number_ranges(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace rannc::plan
