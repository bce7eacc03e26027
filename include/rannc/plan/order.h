#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rannc::plan {

enum class Direction { forward, backward };

/// Gradients that are summed as one array, of one dtype.
struct Bucket {
  std::vector<size_t> parameters;  ///< of the reduction, in the order of the array
  int64_t bytes = 0;
  /// Each rank of the reduction gets its shard of the sum, and the rest of the gradients is zero
  /// there: it steps that part of the parameters.
  bool sharded = false;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

enum class CommunicationKind {
  transfer,    ///< rows of one transfer, or the gradient that comes back
  statistics,  ///< of one batch normalisation of the whole batch: each replica gets all
  buffers,     ///< running statistics of a stage's replicas become one
  outputs,     ///< scalar outputs become one, on all ranks
  bucket,      ///< gradients are summed over the ranks of their reduction
};

/// What ranks exchange at one place of Program::order. It needs all of them at the same time: both
/// ends of a transfer (which may be one rank), all replicas of the stage, those without rows, too,
/// or all ranks of the reduction.
struct Communication {
  CommunicationKind kind = CommunicationKind::transfer;
  int index = -1;  ///< transfer; statistics, buffers: the stage; bucket: the reduction
  int part = -1;   ///< statistics: the node; bucket: which one of the reduction
  Direction direction = Direction::forward;  ///< of transfers and statistics
  friend bool operator==(const Communication&, const Communication&) = default;
};

/// When a rank issues a communication: starts it and goes on. The actions that wait for it are the
/// same with any transport.
struct Issue {
  int place = 0;   ///< in Program::order
  int action = 0;  ///< before this one; their number: after the last one
  /// During the action, a forward or backward: as soon as what it needs is there, and the issues
  /// before it are made.
  bool inside = false;
  friend bool operator==(const Issue&, const Issue&) = default;
};

}  // namespace rannc::plan
