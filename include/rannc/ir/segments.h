#pragma once

#include <cstdint>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// Nodes of a graph that keep only what they take, and are run again before their backward.
struct Segment {
  struct Input {
    ValueId value;
    bool is_written = false;  ///< by the segment: a second run needs it as it was
  };
  struct State {
    ValueId value;            ///< a parameter or buffer that the segment touches
    bool is_shared = false;   ///< nodes outside of the segment touch it, too
    bool is_written = false;  ///< by any node
  };
  uint32_t begin = 0;  ///< its nodes are those from `begin` on
  uint32_t end = 0;    ///< and before this one
  std::vector<Input> inputs;
  std::vector<ValueId> outputs;  ///< what others read, or the graph gives
  std::vector<State> state;
  bool draws = false;  ///< random numbers, or may
};

struct SegmentedGraph {
  Graph graph;  ///< values keep their ids
  std::vector<Segment> segments;
};

/// The graph of a stage in an order in which the nodes of each segment follow each other.
///
/// A segment is given by its nodes that depend on the rows, ascending; nothing else that depends on
/// the rows may be between them but collectives. Of the others it has what only it uses, so that
/// casts of its weights are not kept. What is used elsewhere, too, runs before it. Nodes that draw
/// or write state stay where they are. Throws PlanError where a segment writes to a result of other
/// nodes, which a second run would find written.
[[nodiscard]] SegmentedGraph segmented(Graph graph,
                                       const std::vector<std::vector<NodeId>>& segments);

/// All nodes of the graph as one segment.
[[nodiscard]] SegmentedGraph as_one_segment(Graph graph);

}  // namespace rannc::ir
