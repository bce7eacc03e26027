#include "partition/candidates/micro_batch_numbers.h"

#include <algorithm>

#include "rannc/partition/planner.h"

namespace rannc::partition {

int64_t fewest_rows(const Request& request, const std::vector<int>& replicas,
                    int64_t micro_batches) {
  return request.global_batch / micro_batches / std::ranges::max(replicas);
}

std::vector<int64_t> numbers_with_rows(const Request& request, const std::vector<int>& replicas,
                                       int64_t least_rows) {
  std::vector<int64_t> numbers = allowed_micro_batches(request);
  std::erase_if(
      numbers, [&](int64_t number) { return fewest_rows(request, replicas, number) < least_rows; });
  return numbers;
}

std::vector<int64_t> numbers_below(const Request& request, int64_t count) {
  std::vector<int64_t> numbers = allowed_micro_batches(request);
  std::erase_if(numbers, [&](int64_t number) { return number >= count; });
  return numbers;
}

std::vector<int64_t> numbers_worth_a_run(const Request& request, const plan::Plan& plan) {
  const std::vector<int> replicas = arrangement_of(plan).replicas;
  std::vector<int64_t> numbers = allowed_micro_batches(request);
  std::erase_if(numbers, [&](int64_t number) {
    if (number <= plan.micro_batches) return number == plan.micro_batches;
    // More fill a pipeline, and of one stage there is none.
    return replicas.size() == 1 || fewest_rows(request, replicas, number) <= 1;
  });
  return numbers;
}

}  // namespace rannc::partition
