#pragma once

#include "partition/problem/search_report.h"
#include "rannc/partition/evaluate.h"

namespace rannc::partition {

/// described() for the search's answer: notes are those of `report`.
[[nodiscard]] plan::Plan described(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                                   const Request& request, plan::Plan plan,
                                   const Evaluation& evaluation, const SearchReport& report);

}  // namespace rannc::partition
