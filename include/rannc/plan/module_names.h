#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rannc::plan {

/// Names parts of a model by its modules.
class ModuleNames {
 public:
  /// `all`: the module path of every operator; "" is the model itself. It must outlive this.
  explicit ModuleNames(const std::vector<std::string>& all);

  /// What `mine`, some of these operators, are: the largest modules that lie wholly in it, in order
  /// of appearance, runs of numbered ones folded: "embed, layers.0-3". A module of which it holds
  /// some operators, but no whole child, is "layers.4 (part)". After `most` names, how many more.
  [[nodiscard]] std::string of(const std::vector<std::string>& mine, size_t most = 40) const;

 private:
  std::unordered_map<std::string_view, int> total_;  // operators in each module and below it
};

/// "0-3, 6": ascending numbers, runs folded.
[[nodiscard]] std::string number_ranges(std::vector<int> numbers);

}  // namespace rannc::plan
