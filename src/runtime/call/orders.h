#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/buckets.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/program.h"

namespace rannc::runtime {

/// A Program and what one rank has to know about it, beyond its actions.
struct Orders {
  Orders(plan::Program lowered, const ir::Graph& graph, int rank);

  plan::Program program;
  size_t return_outputs = 0;  ///< actions before this one belong to forward(), the rest to backward
  /// [stage][k]: messages that carry outputs of this rank's share to others or to itself.
  std::vector<std::vector<int>> sends;
  std::vector<int> last_backward;  ///< [stage]: micro-batch; -1: this rank runs none
  /// [reduction]: the stage whose last backward ends last of those on this rank that add to its
  /// gradients: they are complete then. -1: none does, or this rank takes no part.
  std::vector<int> completed_by;
  int64_t rows = 0;  ///< of this rank's local batch
  int64_t global_rows = 0;
};

/// One rank's orders for the batches that it has seen: a batch of another size has its own Program.
/// Not thread-safe: belongs to the thread that calls forward().
class OrdersCache {
 public:
  /// `graph` must outlive it.
  OrdersCache(const plan::Plan& plan, const ir::Graph& graph, int rank, plan::Outputs outputs,
              int64_t bucket_bytes, plan::ParameterHolders holders,
              std::optional<std::vector<std::vector<std::string>>> shards);

  /// Lowers the plan for `local_rows` unless it is among the sizes used last.
  [[nodiscard]] std::shared_ptr<const Orders> get(const std::vector<int64_t>& local_rows,
                                                  bool training);

 private:
  [[nodiscard]] plan::Program lower(const std::vector<int64_t>& local_rows, bool training) const;

  struct Entry {
    std::vector<int64_t> local_rows;
    bool training = true;
    std::shared_ptr<const Orders> orders;  // shared with the calls that are still alive
  };
  plan::Plan plan_;
  const ir::Graph& graph_;
  int rank_;
  plan::Outputs outputs_;
  plan::ParameterHolders holders_;
  std::optional<std::vector<std::vector<std::string>>> shards_;  // Options::shards
  std::list<Entry> entries_;                                     // the one used last first
};

}  // namespace rannc::runtime
