#include "plan/lower/compute_order.h"

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// `warm_up` forwards, then pairs until the forwards run out, then the remaining backwards.
std::vector<Compute> warmed_up(const std::vector<Compute>& forwards,
                               const std::vector<Compute>& backwards, size_t warm_up) {
  std::vector<Compute> order(forwards.begin(), forwards.begin() + static_cast<ptrdiff_t>(warm_up));
  for (size_t pair = 0; pair + warm_up < forwards.size(); ++pair) {
    order.push_back(forwards[pair + warm_up]);
    order.push_back(backwards[pair]);
  }
  order.insert(order.end(), backwards.end() - static_cast<ptrdiff_t>(warm_up), backwards.end());
  return order;
}

}  // namespace

std::vector<Compute> compute_order(Schedule schedule, int stages, int interleave, int micro_batches,
                                   int group, bool training) {
  const int chunks = schedule == Schedule::interleaved ? interleave : 1;
  RANNC_CHECK(chunks >= 1 && stages % chunks == 0, "stages are a multiple of the interleave");
  const int groups = stages / chunks;
  // Interleaving goes in rounds of as many micro-batches as groups. Of the last round those that do
  // not exist are left out again; what is left keeps its order, so it still ends.
  const int rounded = chunks == 1 ? micro_batches : (micro_batches + groups - 1) / groups * groups;

  // With one chunk, n / groups % 1 is 0 and the micro-batch is n: the plain schedules.
  std::vector<Compute> forwards, backwards;
  for (int n = 0; n < chunks * rounded; ++n) {
    const int chunk = chunks == 1 ? 0 : n / groups % chunks;
    const int micro_batch = chunks == 1 ? n : n / (groups * chunks) * groups + n % groups;
    forwards.push_back({true, chunk * groups + group, micro_batch});
    backwards.push_back({false, (chunks - 1 - chunk) * groups + group, micro_batch});
  }

  const int total = chunks * rounded;
  const auto warm_up = [&] {
    switch (schedule) {
      case Schedule::gpipe:
        return total;
      case Schedule::one_f_one_b:
        return std::min(total, stages - 1 - group);
      case Schedule::interleaved:
        return std::min(total, 2 * (groups - 1 - group) + (chunks - 1) * groups);
    }
    RANNC_CHECK(false, "a schedule without an order");
  };
  std::vector<Compute> order =
      training ? warmed_up(forwards, backwards, static_cast<size_t>(warm_up())) : forwards;
  std::erase_if(order, [&](const Compute& what) { return what.micro_batch >= micro_batches; });
  return order;
}

}  // namespace rannc::plan
