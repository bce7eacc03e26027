#pragma once

#include <functional>
#include <optional>

#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"

namespace rannc::partition {

/// What a rank can hold. All plans have what StepModel::predict() says of them, which has the last
/// word: the account by which the search judges does not know the arrays in which gradients are
/// summed over replicas, nor what the optimizer computes with.
struct MemoryLimit {
  double device_bytes = 0;
  double limit_bytes = 0;  ///< that a plan may take on a rank, after the safety margin
  double held_bytes = 0;   ///< what a rank with the whole model holds before the first step

  /// Whether a rank can hold what a step of the plan needs.
  [[nodiscard]] bool fits(const plan::Plan& plan) const;

  /// Whether a rank has memory for a run of the plan beside all that it holds before the first
  /// step. A run makes no state of the optimizer.
  [[nodiscard]] bool fits_beside_model(const plan::Plan& plan) const;

  /// Whether with more memory there may be a faster plan than that of `found`.
  [[nodiscard]] bool is_tight(const Found& found) const;
};

/// What `search` finds for `request` with as much less memory as the step of its plan needs too
/// much, until it fits; none where nothing is found any more.
[[nodiscard]] std::optional<Found> smaller_until_it_fits(
    const MemoryLimit& memory, Request request,
    const std::function<std::optional<Found>(const Request&)>& search);

/// By the account, on the fullest rank.
[[nodiscard]] double peak_bytes(const plan::Plan& plan);

}  // namespace rannc::partition
