#pragma once

#include <set>
#include <vector>

#include "rannc/predict/step_memory.h"

namespace rannc::predict {

/// What a stage holds and needs, by its nodes.
struct StageMemory {
  /// Of what a forward keeps; others: the segment whose second run saves it.
  static constexpr int kKept = -1;
  struct Saved {
    uint32_t first_user;  ///< its backward is the last one that needs the memory
    std::vector<double> bytes;
    bool per_call = false;  ///< all micro-batches of a call share it
    int segment = kKept;
  };
  /// Nodes that are run again before their backward.
  struct Segment {
    uint32_t last;                         ///< of its nodes
    std::vector<ir::ValueId> inputs = {};  ///< kept until then, but for those of a segment before
  };
  /// A value whose gradient waits while the backward of other nodes runs: those after `producer`
  /// and before `last_user`, which comes first. A residual connection, for example.
  struct Waiting {
    int64_t producer;   ///< -1: it comes from another stage
    int64_t last_user;  ///< the number of nodes: another stage gives its gradient
    ir::ValueId value;
  };

  std::vector<uint32_t> nodes;  ///< of the profile, ascending
  std::set<uint32_t> params;
  bool recompute = false;         ///< one segment, which keeps what has arrived
  std::vector<Segment> segments;  ///< in the order of their nodes
  std::vector<int> segment_of;    ///< [place in `nodes`]
  std::vector<Saved> saved;       ///< by first_user
  std::vector<Waiting> waiting;
};

/// What each stage of `plan` holds.
[[nodiscard]] std::vector<StageMemory> stage_memories(const plan::Plan& plan,
                                                      const ir::Graph& graph,
                                                      const cost::GraphProfile& profile,
                                                      const std::vector<cost::SavedStorage>& saved);

}  // namespace rannc::predict
