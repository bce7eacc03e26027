#pragma once

#include <string>
#include <vector>

#include "partition/problem/search_report.h"
#include "rannc/partition/candidates.h"
#include "rannc/partition/evaluate.h"

// The notes of a plan: what `rannc show` and `rannc explain` say beyond its stages, as JSON text.
namespace rannc::partition {

/// A JSON object: how the search went, its bound, the parts of the iteration, the transfers, and
/// the best plan of each other kind with the reason why it lost. `evaluation` is of the plan.
[[nodiscard]] std::string make_notes(const cost::Cluster& cluster, const Request& request,
                                     const Evaluation& evaluation, const SearchReport& report);

/// The notes of `plan` as `evaluation` and `parts` have it: where it is a changed answer of the
/// search, the search's keys stay.
[[nodiscard]] std::string changed_notes(const plan::Plan& plan, const cost::Cluster& cluster,
                                        const Request& request, const Evaluation& evaluation,
                                        const TimeParts& parts);

/// The notes of `found`, an answer of make_plan(), for `other`, the best plan of another
/// arrangement: `found` is one of the alternatives. changed_notes() makes the rest that of `other`.
[[nodiscard]] std::string search_notes(const plan::Plan& found, const plan::Plan& other);

/// `notes`, of which the limit is all that a device of `cluster` has.
[[nodiscard]] std::string with_memory_of(const std::string& notes, const cost::Cluster& cluster);

/// `notes` with what ran: see with_trials(). An alternative that ran and was predicted to be as
/// fast or faster is said to have taken longer.
[[nodiscard]] std::string with_trial_notes(const std::string& notes,
                                           const std::vector<TriedPlan>& arrangements,
                                           const std::vector<TriedPlan>& numbers);

/// A JSON object for each stage: its modules by their paths, and what it takes and gives.
[[nodiscard]] std::vector<std::string> stage_notes(const cost::GraphProfile& profile,
                                                   const plan::Plan& plan,
                                                   const Evaluation& evaluation);

}  // namespace rannc::partition
