#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "partition/problem/draft.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// Which links the ranks of stages use. Remembers what it has worked out; not for several threads.
class Placements {
 public:
  explicit Placements(const cost::Cluster& cluster) : cluster_(cluster) {}

  struct Place {
    std::vector<int> ranks;  ///< in the order of the shares
    std::vector<int> hosts;  ///< ascending, each once
  };
  /// Equal ranks have equal ids.
  [[nodiscard]] int id(const Ranks& ranks);
  [[nodiscard]] const Place& place(int id) const { return places_[static_cast<size_t>(id)]; }

  /// Duration of one transfer of values of `size` from one place to another, for micro-batches of
  /// `micro_rows` rows: section 5 of docs/planner-files.md.
  [[nodiscard]] double transfer_ns(int from, int to, const cost::Size& size, double micro_rows);

 private:
  /// What one device or host sends or receives: a share of the rows, and a number of messages.
  using Load = std::pair<double, double>;
  struct Loads {
    std::vector<Load> device_inside, device_between, host_between;  ///< none beats another
  };
  const Loads& loads(int from, int to);

  const cost::Cluster& cluster_;
  std::map<Ranks, int> ids_;
  std::vector<Place> places_;
  std::map<std::pair<int, int>, Loads> loads_;
};

}  // namespace rannc::partition
