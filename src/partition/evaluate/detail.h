#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rannc/partition/evaluate.h"
#include "rannc/plan/mesh.h"

// The parts of evaluate(): what a plan says, its time, its memory. Nothing of the search is used
// here, and the search uses nothing of this but evaluate() itself.
namespace rannc::partition::evaluation {

/// A plan whose structure is sound, with indices for names and everything that sections 5 and 6 of
/// docs/planner-files.md derive from it.
struct Layout {
  const cost::GraphProfile& profile;
  const cost::Cluster& cluster;
  const Request& request;
  const plan::Plan& plan;

  std::vector<std::vector<uint32_t>> nodes;  ///< [stage] ascending
  std::vector<uint32_t> stage_of;            ///< [node]
  int64_t micro_rows = 0;                    ///< M = ceil(B / m)
  std::vector<double> rows;                  ///< [stage] b_s = ceil(B / (m r_s))
  size_t groups = 0;                         ///< stage i runs on group i mod groups
  /// [node] the segment of its stage that runs it again, numbered over all stages; kRunsOnce: none.
  /// A stage that recomputes is one segment.
  static constexpr uint32_t kRunsOnce = UINT32_MAX;
  std::vector<uint32_t> segment_of;

  [[nodiscard]] size_t stages() const { return nodes.size(); }
  [[nodiscard]] size_t group_of(size_t stage) const { return stage % groups; }
  [[nodiscard]] const std::vector<plan::Rank>& ranks(size_t stage) const {
    return plan.stages[stage].ranks;
  }
  [[nodiscard]] plan::StageMesh mesh(size_t stage) const { return mesh_of(plan.stages[stage]); }
  [[nodiscard]] bool runs_again(uint32_t node) const { return segment_of[node] != kRunsOnce; }
};

/// Checks everything but memory, and appends what is wrong to `problems`. Nothing when time and
/// memory cannot be computed.
[[nodiscard]] std::optional<Layout> resolve(const cost::GraphProfile& profile,
                                            const cost::Cluster& cluster, const Request& request,
                                            const plan::Plan& plan,
                                            std::vector<std::string>& problems);

struct Action {
  uint32_t stage = 0;
  int64_t micro_batch = 0;
  bool backward = false;
};
/// The fixed order of each group's compute actions. [group]
[[nodiscard]] std::vector<std::vector<Action>> compute_orders(const Layout& layout);

/// All values that go from one stage to a later one, together.
struct Transfer {
  size_t from = 0;
  size_t to = 0;
  double bytes = 0;  ///< forward, of one micro-batch
  double forward_ns = 0;
  double backward_ns = 0;
  bool has_backward = false;  ///< some value has a gradient
};
/// By (from, to).
[[nodiscard]] std::vector<Transfer> transfers(const Layout& layout);

/// Sets rows, forward_ns and backward_ns of the stages. Returns, for each, its backward without
/// recompute.
[[nodiscard]] std::vector<double> evaluate_compute(const Layout& layout,
                                                   std::vector<StageEvaluation>& stages);

/// The end of each stage's last backward. Requires evaluate_compute().
[[nodiscard]] std::vector<double> simulate_groups(const Layout& layout,
                                                  const std::vector<std::vector<Action>>& orders,
                                                  const std::vector<Transfer>& transfers,
                                                  const std::vector<StageEvaluation>& stages);

/// Sets reduce_ns of the stages; returns the end of the last reduction, 0 when there is none.
/// `gradient_ns` is what evaluate_compute() returned.
[[nodiscard]] double evaluate_reductions(const Layout& layout,
                                         const std::vector<double>& last_backward,
                                         const std::vector<double>& gradient_ns,
                                         std::vector<StageEvaluation>& stages);

struct StateBytes {
  double param = 0;
  double gradient = 0;
  double optimizer = 0;
};
/// Parameters of the nodes of `stages`, which are on the same ranks, each once.
[[nodiscard]] StateBytes state_bytes(const Layout& layout, const std::vector<size_t>& stages);

/// Sets the bytes of the stages, for a profile of version 2.
void evaluate_moments(const Layout& layout, const std::vector<std::vector<Action>>& orders,
                      std::vector<StageEvaluation>& stages);

/// Sets the bytes of the stages.
void evaluate_memory(const Layout& layout, const std::vector<std::vector<Action>>& orders,
                     std::vector<StageEvaluation>& stages);

}  // namespace rannc::partition::evaluation
