#pragma once

#include <cstdint>
#include <vector>

#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Rows of the smallest share. Where it is one, operators may compute in another way: batch
/// normalisation refuses it.
[[nodiscard]] int64_t fewest_rows(const Request& request, const std::vector<int>& replicas,
                                  int64_t micro_batches);

/// Those numbers of micro-batches of `request` with which every share has `least_rows`.
[[nodiscard]] std::vector<int64_t> numbers_with_rows(const Request& request,
                                                     const std::vector<int>& replicas,
                                                     int64_t least_rows);

[[nodiscard]] std::vector<int64_t> numbers_below(const Request& request, int64_t count);

/// Those that may be worth a run beside that of `plan`.
[[nodiscard]] std::vector<int64_t> numbers_worth_a_run(const Request& request,
                                                       const plan::Plan& plan);

}  // namespace rannc::partition
