#pragma once

#include <ostream>
#include <span>
#include <string>

namespace rannc::rannc_plan {

/// Exit codes of `rannc-plan`. An interruption ends it with 130.
enum ExitCode : int { kDone = 0, kBadInput = 2, kDoesNotFit = 3 };

/// The program `rannc-plan`: `words` are its name and its arguments. Answers go to `out`, one line
/// for what is wrong to `err`.
[[nodiscard]] int run(std::span<const char* const> words, std::ostream& out, std::ostream& err);

}  // namespace rannc::rannc_plan
