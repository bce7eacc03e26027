#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "rannc/cost/graph_profile.h"

namespace rannc::partition {

/// Costs of blocks at any row count: the sums of their nodes' costs, as docs/planner-files.md
/// defines them. Computed at first use and kept; several threads may ask. Keeps a reference to the
/// profile.
class BlockCosts {
 public:
  struct AtRows {
    std::vector<double> forward_ns, backward_ns, saved_bytes, workspace_bytes;  ///< per block
    std::vector<double> forward_host_ns, backward_host_ns;  ///< per block; empty: none has any
  };

  BlockCosts(const cost::GraphProfile& profile, std::vector<std::vector<uint32_t>> blocks);
  /// The same blocks in another order; `source` must live.
  BlockCosts(const BlockCosts& source, std::vector<uint32_t> order);

  [[nodiscard]] const cost::GraphProfile& profile() const { return profile_; }
  /// Nodes of each block; empty for another order of blocks.
  [[nodiscard]] const std::vector<std::vector<uint32_t>>& members() const { return blocks_; }
  [[nodiscard]] size_t blocks() const { return source_ ? order_.size() : blocks_.size(); }
  /// O(blocks), or O(nodes) when a cost of a node would fall below 0 outside its points.
  [[nodiscard]] const AtRows& at(int64_t rows) const;

 private:
  AtRows of_nodes(double rows) const;
  AtRows of_sums(double rows) const;
  AtRows in_order(const AtRows& costs) const;

  const cost::GraphProfile& profile_;
  const BlockCosts* source_ = nullptr;
  std::vector<uint32_t> order_;  // of the source's blocks
  std::vector<std::vector<uint32_t>> blocks_;
  /// [block] at the profile's points; empty when sums over nodes are not linear outside of them
  /// because a node's cost is cut off at 0.
  std::vector<std::vector<double>> forward_, backward_, saved_, forward_host_, backward_host_;
  bool linear_ = true;
  bool has_host_times_;
  mutable std::mutex mutex_;  // guards known_
  mutable std::map<int64_t, std::unique_ptr<AtRows>> known_;
};

/// One block per node.
[[nodiscard]] std::vector<std::vector<uint32_t>> single_blocks(size_t nodes);

}  // namespace rannc::partition
