#pragma once

#include <string>

#include "partition/report.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {

/// The plan's notes, a JSON object: what was searched, its bound, and the best arrangement of each
/// other kind.
[[nodiscard]] std::string search_notes(const plan::Plan& plan, const SearchReport& report);

}  // namespace rannc::partition
