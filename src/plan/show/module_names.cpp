#include "rannc/plan/module_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
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

std::optional<int> number_at_end(std::string_view path) {
  const size_t dot = path.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return number;
}

/// `path` and what it is in, from the outermost module on.
std::vector<std::string_view> outside_in(std::string_view path) {
  std::vector<std::string_view> prefixes;
  for (; !path.empty(); path = parent(path)) prefixes.push_back(path);
  std::ranges::reverse(prefixes);
  return prefixes;
}

/// Of what `path` is in, the module of the longest list of numbered ones; "" when there is none.
std::string_view longest_numbered(std::string_view path, const Counts& numbered) {
  std::string_view longest;
  int most = 0;
  for (std::string_view prefix : outside_in(path)) {
    const auto found = numbered.find(parent(prefix));
    if (found == numbered.end() || found->second <= most || !number_at_end(prefix)) continue;
    most = found->second;
    longest = prefix;
  }
  return longest;
}

/// Children of one module whose names are numbers, for as long as names are collected.
struct Numbered {
  size_t place;  // of their text
  std::string_view parent;
  std::vector<int> numbers;

  [[nodiscard]] std::string text() const {
    return fmt::format("{}{}{}", parent, parent.empty() ? "" : ".", number_ranges(numbers));
  }
};

}  // namespace

ModuleNames::ModuleNames(const std::vector<std::string>& all) : total_(count(all)) {
  Counts numbered;  // children of each module whose names are numbers
  for (const auto& [path, operators] : total_) {
    if (!path.empty() && number_at_end(path)) ++numbered[parent(path)];
  }
  holders_.insert("");
  for (const std::string& path : all) {
    std::string_view over = longest_numbered(path, numbered);
    while (!over.empty()) holders_.insert(over = parent(over));
  }
  for (std::string_view path : all) {
    const std::string_view unit = unit_of(path);
    if (path == unit) continue;
    const auto [ends, is_new] = ends_.try_emplace(unit, Range{path, path});
    ends->second.last = path;
  }
}

std::string_view ModuleNames::unit_of(std::string_view path) const {
  for (std::string_view prefix : outside_in(path)) {
    if (!holders_.contains(prefix)) return prefix;
  }
  return path;
}

std::string ModuleNames::cut_unit(std::string_view unit, const std::vector<std::string>& mine,
                                  const Counts& held) const {
  const std::string name = unit.empty() ? "model" : std::string(unit);
  const auto ends = ends_.find(unit);
  std::string_view first, last;
  for (std::string_view path : mine) {
    if (path.size() <= unit.size() || !path.starts_with(unit) || unit_of(path) != unit) continue;
    if (first.empty()) first = path;
    last = path;
  }
  if (ends == ends_.end() || first.empty()) return name + " (part)";
  const auto inside = [&](std::string_view path) {
    while (parent(path) != unit && held.at(parent(path)) == total_.at(parent(path))) {
      path = parent(path);
    }
    return path.substr(unit.empty() ? 0 : unit.size() + 1);
  };
  const bool begins = held.contains(ends->second.first), stops = held.contains(ends->second.last);
  if (begins && stops) return name + " (part)";
  if (begins) return fmt::format("{} (up to {})", name, inside(last));
  if (stops) return fmt::format("{} (from {})", name, inside(first));
  if (inside(first) == inside(last)) return fmt::format("{}.{}", name, inside(first));
  return fmt::format("{} (from {} up to {})", name, inside(first), inside(last));
}

std::string ModuleNames::of(const std::vector<std::string>& mine, size_t most) const {
  const Counts held = count(mine);
  const auto is_whole = [&](std::string_view path) { return held.at(path) == total_.at(path); };

  std::vector<std::string> names;
  std::vector<Numbered> folded;
  std::unordered_set<std::string_view> seen;
  std::vector<std::string_view> between;
  for (std::string_view path : mine) {
    const bool in_between = holders_.contains(path) && !is_whole(path);
    std::string_view shown = in_between ? path : unit_of(path);
    while (!in_between && !shown.empty() && is_whole(shown) && is_whole(parent(shown))) {
      shown = parent(shown);
    }
    if (!seen.insert(shown).second) continue;
    if (in_between) {
      between.push_back(shown);
      continue;
    }
    if (!is_whole(shown)) {
      names.push_back(cut_unit(shown, mine, held));
      continue;
    }
    const auto number = shown.empty() ? std::nullopt : number_at_end(shown);
    if (!number) {
      names.emplace_back(shown.empty() ? "model" : shown);
      continue;
    }
    auto list = std::ranges::find(folded, parent(shown), &Numbered::parent);
    if (list == folded.end()) {
      list = folded.insert(list, {names.size(), parent(shown), {}});
      names.emplace_back();
    }
    list->numbers.push_back(*number);
  }
  for (const Numbered& list : folded) names[list.place] = list.text();
  if (names.empty()) {
    for (std::string_view path : between) {
      names.push_back(fmt::format("{} (part)", path.empty() ? "model" : path));
    }
  }
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
  }
  return names.size() <= most ? text : fmt::format("{} and {} more", text, names.size() - most);
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
