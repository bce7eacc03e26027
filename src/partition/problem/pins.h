#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/problem/search_space.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/planner.h"

namespace rannc::partition {

/// The profile with one more group for each module that must stay whole; nothing when there is no
/// such module. Throws ConfigError naming the closest module when a name is of none, or when nodes
/// of one group would be in two modules that are kept whole apart from each other.
[[nodiscard]] std::optional<cost::GraphProfile> keep_whole(const cost::GraphProfile& profile,
                                                           const std::vector<std::string>& modules);

/// [node] the stage demanded by `pins` (SearchSpace::kFree: none); empty without pins. Throws
/// ConfigError for an unknown module, or a node with two pins.
[[nodiscard]] std::vector<int> pins_of_nodes(const cost::GraphProfile& profile,
                                             const std::vector<Pin>& pins);

/// Where nodes of one piece are pinned to the last stage and to one with a number, the last has
/// that number: returns how many stages there must be, and the number takes the place of the last.
/// 0: no piece says so.
[[nodiscard]] int number_last_stage(std::vector<int>& pin_of_node,
                                    const std::vector<std::vector<uint32_t>>& pieces);

/// [block] likewise. Throws ConfigError when nodes that cannot be separated have different pins.
[[nodiscard]] std::vector<int> pins_of_blocks(const cost::GraphProfile& profile,
                                              const std::vector<int>& pin_of_node,
                                              const std::vector<std::vector<uint32_t>>& blocks);

}  // namespace rannc::partition
