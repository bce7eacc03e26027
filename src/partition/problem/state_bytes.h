#pragma once

#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// What parameters take on a rank that holds them: section 6 of docs/planner-files.md. The state of
/// the optimizer as it is before the replicas of a stage share it.
struct StateBytes {
  double param_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  [[nodiscard]] double bytes() const { return param_bytes + gradient_bytes + optimizer_bytes; }
  StateBytes& operator+=(const StateBytes& other) {
    param_bytes += other.param_bytes;
    gradient_bytes += other.gradient_bytes;
    optimizer_bytes += other.optimizer_bytes;
    return *this;
  }
};

[[nodiscard]] inline StateBytes state_of(const cost::ProfileParam& param, const Request& request) {
  StateBytes state{.param_bytes = param.bytes};
  if (!param.trainable) return state;
  state.gradient_bytes = param.bytes * request.gradient_bytes_per_param_byte;
  state.optimizer_bytes = param.optimizer_bytes >= 0
                              ? param.optimizer_bytes
                              : param.bytes * request.optimizer_bytes_per_param_byte;
  state.optimizer_bytes += param.bytes * request.master_bytes_per_param_byte;
  return state;
}

/// The share of the optimizer's state that each of so many replicas holds.
[[nodiscard]] inline double optimizer_share(const Request& request, double replicas) {
  return request.shard_optimizer ? 1 / replicas : 1;
}

}  // namespace rannc::partition
