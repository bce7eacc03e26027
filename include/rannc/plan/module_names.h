#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace rannc::plan {

/// Names parts of a model by its modules.
class ModuleNames {
 public:
  /// `all`: the module path of every operator, in topological order; "" is the model itself. It
  /// must outlive this.
  explicit ModuleNames(const std::vector<std::string>& all);

  /// What `mine`, some of these operators in their order, are, in order of appearance: the largest
  /// modules that lie wholly in it, numbered ones folded ("embed, layers.0-3"), and of a numbered
  /// module that is cut, how far ("layers.4 (up to attn)", "layers.4 (from attn.out)"). Operators
  /// that belong to nothing but what holds all those modules, as sums and views between them, get
  /// a name only where there is no other. After `most` names, how many more.
  [[nodiscard]] std::string of(const std::vector<std::string>& mine, size_t most = 40) const;

 private:
  using Counts = std::unordered_map<std::string_view, int>;

  /// What gets a name where a stage holds a part of it: a numbered module, or what is in none.
  [[nodiscard]] std::string_view unit_of(std::string_view path) const;
  [[nodiscard]] std::string cut_unit(std::string_view unit, const std::vector<std::string>& mine,
                                     const Counts& held) const;

  struct Range {
    std::string_view first, last;
  };
  Counts total_;                                      // operators in each module and below it
  std::unordered_set<std::string_view> holders_;      // of units
  std::unordered_map<std::string_view, Range> ends_;  // of each unit, first and last part
};

/// "0-3, 6": ascending numbers, runs folded.
[[nodiscard]] std::string number_ranges(std::vector<int> numbers);

}  // namespace rannc::plan
