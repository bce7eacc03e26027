#include "partition/problem/stage_account.h"

#include <algorithm>

namespace rannc::partition {

double peak_bytes(const StageAccount& stage, bool recompute, int64_t in_flight,
                  int64_t micro_batches) {
  const double kept = stage.kept_bytes(recompute);
  const double in = stage.in_bytes, out = stage.out_bytes;
  const double in_gradients = stage.in_gradient_bytes, out_gradients = stage.out_gradient_bytes;
  const int64_t rest = micro_batches - in_flight;  // forwards behind the first backward
  double most = 0;
  const auto look = [&](int64_t held, double more) {
    most = std::max(most, static_cast<double>(held) * kept + more);
  };
  // The last two forwards before the first backward, and that backward.
  if (in_flight > 1) look(in_flight - 1, out + in);
  look(in_flight, out + out_gradients);
  const double next = rest > 0 ? in : in_flight > 1 ? out_gradients : 0;
  look(in_flight - 1, stage.first_bytes + out + next);
  look(in_flight - 1, stage.gradient_bytes + in_gradients + next);
  // Then all gradients are there.
  if (rest > 0) {
    look(in_flight, stage.gradient_bytes + std::max(in_gradients, out) + out_gradients);
    const double behind = std::max(rest > 1 ? in : 0, in_flight > 1 ? out_gradients : 0);
    look(in_flight - 1, stage.gradient_bytes + stage.later_bytes + out + behind);
    look(in_flight - 1, stage.gradient_bytes + in_gradients + behind);
  }
  if (in_flight > 1) {
    const double behind = in_flight > 2 ? out_gradients : 0;
    look(in_flight - 2, stage.gradient_bytes + stage.later_bytes + in_gradients + behind);
  }
  return stage.state_bytes + most;
}

}  // namespace rannc::partition
