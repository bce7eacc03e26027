#pragma once

#include <array>
#include <vector>

#include "predict/stage_memory.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/plan/program.h"

namespace rannc::predict {

/// When things happen within a step, as plan::simulate() has it with the costs of the profile and
/// messages that take no time.
struct MessageTimes {
  std::vector<std::vector<double>> begin_ns;  ///< [rank][action]
  /// [direction][transfer]: when its receiver posts it, if that is somewhat late. Until then it
  /// stays with its sender.
  std::array<std::vector<double>, 2> posted_ns;
};

[[nodiscard]] MessageTimes message_times(const plan::Program& program,
                                         const cost::GraphProfile& profile,
                                         const std::vector<StageMemory>& stages);

}  // namespace rannc::predict
