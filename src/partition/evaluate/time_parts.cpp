#include "partition/evaluate/time_parts.h"

#include <algorithm>

#include "partition/evaluate/detail.h"
#include "rannc/util/error.h"

namespace rannc::partition {

TimeParts time_parts(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                     const Request& request, const plan::Plan& plan, double iteration_ns) {
  std::vector<std::string> problems;
  const auto layout = evaluation::resolve(profile, cluster, request, plan, problems);
  RANNC_CHECK(layout, "a plan whose time is known: " + problems.front());
  std::vector<StageEvaluation> stages(layout->stages());
  (void)evaluate_compute(*layout, stages);

  TimeParts parts;
  std::vector<double> busy(layout->groups, 0);
  double slowest = -1;
  for (size_t s = 0; s < stages.size(); ++s) {
    const double turn = stages[s].forward_ns + stages[s].backward_ns;
    if (turn > slowest) parts.slowest_stage = s;
    slowest = std::max(slowest, turn);
    busy[layout->group_of(s)] += static_cast<double>(plan.micro_batches) * turn;
  }
  const auto orders = compute_orders(*layout);
  std::vector<evaluation::Transfer> sent = transfers(*layout);
  const double computed = std::ranges::max(simulate_groups(*layout, orders, sent, stages));
  for (evaluation::Transfer& transfer : sent) transfer.forward_ns = transfer.backward_ns = 0;
  const double without = std::ranges::max(simulate_groups(*layout, orders, sent, stages));

  // Sums in another order differ in their last bits; a part is never below nothing.
  parts.compute_ns = std::ranges::max(busy);
  parts.bubble_ns = std::max(0.0, without - parts.compute_ns);
  parts.transfer_ns = std::max(0.0, computed - without);
  parts.reduction_ns = std::max(0.0, iteration_ns - computed);
  return parts;
}

}  // namespace rannc::partition
