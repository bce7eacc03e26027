#pragma once

namespace rannc::partition {

/// Parts of the search that a benchmark may leave out to see what they gain
/// (benchmarks/planner/ablations.cpp). All are on; they are no settings of a user's. Two gain next
/// to nothing on average, but on single graphs: of 260 problems (`ablations small large --inexact
/// --problems 1500`) one was 37 % longer without other_layouts, one 3 % without inner_blocks.
struct Heuristics {
  bool coarse = true;         ///< searches with fewer blocks go first
  bool zoom = true;           ///< borders are refined piece by piece
  bool exact = true;          ///< small problems are searched exactly
  bool down_sets = true;      ///< stages are searched between all down-sets, too
  bool other_orders = true;   ///< and in more than one linear order of the blocks
  bool other_layouts = true;  ///< replicas in other columns of the cluster
  bool refine = true;         ///< single changes improve the best of each arrangement
  bool anneal = true;         ///< where there are branches, random changes of the best drafts
  bool inner_blocks = true;   ///< refining moves blocks from behind others over a border
  bool parts = true;   ///< refining moves parts of stages to any stage, where there are branches
  bool places = true;  ///< refining changes the places of stages on hosts
  bool stage_order = true;  ///< refining changes the order of stages, where there are branches
};

}  // namespace rannc::partition
