#pragma once

#include <string>
#include <vector>

namespace rannc::plan {

/// Names what `mine` is of a model whose operators have the module paths `all` (one per operator;
/// "" is the model itself): the largest modules that lie wholly in it, in order of appearance, runs
/// of numbered ones folded: "embed, layers.0-3". A module of which it holds some operators, but no
/// whole child, is "layers.4 (part)".
[[nodiscard]] std::string module_names(const std::vector<std::string>& mine,
                                       const std::vector<std::string>& all);

/// "0-3, 6": ascending numbers, runs folded.
[[nodiscard]] std::string number_ranges(std::vector<int> numbers);

}  // namespace rannc::plan
