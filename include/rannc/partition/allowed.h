#pragma once

#include <cstdint>
#include <functional>

#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// What every stage of a plan must have, by settings of RaNNC 0.7.
struct Allowed {
  int64_t least_rows = 1;      ///< of a replica in a micro-batch
  bool powers_of_two = false;  ///< its replicas are a power of two
  bool fewest_stages = false;  ///< the plan has the fewest stages with which any fits
  friend bool operator==(const Allowed&, const Allowed&) = default;
};

/// On more ranks only equal numbers of replicas are looked at, where not all are allowed.
/// tuned by: a bound on the time of planning.
/// without it: the ways to share out ranks double with each rank, and each is a search.
inline constexpr int kMostRanksInAllWays = 8;

/// `request`, or one to which the search answers with nothing that is not allowed.
///
/// `plan` is what the search has found for `request`: if it is allowed, it is the best, and others
/// of its arrangement are all that is looked at from here on. `search` gives the plan for a
/// request, or throws ConfigError, as make_plan() does. Throws InfeasibleError where no plan that
/// is allowed fits.
[[nodiscard]] Request narrowed(const Request& request, const Allowed& allowed,
                               const plan::Plan& plan, int ranks,
                               const std::function<plan::Plan(const Request&)>& search);

}  // namespace rannc::partition
