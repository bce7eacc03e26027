#include "rannc/util/human.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace rannc {

std::string human_bytes(double bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_ns(double nanoseconds) {
  if (nanoseconds >= 1e9) return fmt::format("{:.2f} s", nanoseconds / 1e9);
  if (nanoseconds >= 1e6) return fmt::format("{:.1f} ms", nanoseconds / 1e6);
  if (nanoseconds >= 1e3) return fmt::format("{:.0f} us", nanoseconds / 1e3);
  return fmt::format("{:.0f} ns", nanoseconds);
}

namespace {
// Levenshtein, with one row kept.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}
}  // namespace

std::string closest(std::string_view word, const std::vector<std::string>& candidates,
                    size_t most) {
  // Words from files may be long, and many: only the beginning counts, and whoever cannot win by
  // length alone is passed over.
  constexpr size_t kMost = 200;
  word = word.substr(0, kMost);
  const std::string* best = nullptr;
  size_t fewest = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const std::string_view other = std::string_view(candidate).substr(0, kMost);
    const size_t least = std::max(word.size(), other.size()) - std::min(word.size(), other.size());
    if (least >= fewest) continue;
    const size_t distance = edit_distance(word, other);
    if (distance >= fewest || distance > most) continue;
    fewest = distance;
    best = &candidate;
  }
  return best == nullptr ? "" : *best;
}

}  // namespace rannc
