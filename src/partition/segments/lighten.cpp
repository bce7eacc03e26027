#include "partition/segments/lighten.h"

#include <utility>

#include "rannc/partition/evaluate.h"

namespace rannc::partition {

plan::Plan with_fewer_segments(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                               const Request& request, plan::Plan plan) {
  for (size_t index = 0; index < plan.stages.size(); ++index) {
    const std::vector<std::vector<std::string>> all = plan.stages[index].segments;
    size_t enough = all.size(), least = 0;
    while (least < enough) {
      const size_t tried = (least + enough) / 2;
      plan.stages[index].segments.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(tried));
      if (evaluate(profile, cluster, request, plan).problems.empty()) {
        enough = tried;
      } else {
        least = tried + 1;
      }
    }
    plan.stages[index].segments.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(enough));
  }
  return plan;
}

}  // namespace rannc::partition
