#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::partition {

/// Time is found by simulating every micro-batch in every stage. A count from a file must not
/// decide how long that takes, or how much memory: this is the most of both counts, multiplied.
/// tuned by: a bound on the time of an evaluation, and on its memory.
/// without it: a file of a hundred bytes makes `rannc evaluate` run for hours.
inline constexpr int64_t kMostTurns = int64_t{1} << 23;

enum class Recompute {
  automatic,  ///< stages where that fits, else segments; "auto" of version 3
  never,
  always,    ///< every stage
  stage,     ///< whole stages or none; "auto" of versions 1 and 2
  segments,  ///< parts of stages, in each one
};
/// Whether the search says of each stage if it recomputes as a whole.
[[nodiscard]] constexpr bool is_free(Recompute recompute) {
  return recompute == Recompute::automatic || recompute == Recompute::stage;
}
/// "auto", "never", "always", "stage", "segments"
[[nodiscard]] std::string_view name(Recompute recompute);
/// Throws ConfigError naming them.
[[nodiscard]] Recompute recompute_from_name(std::string_view name);

/// Choices taken from the planner. Any subset may be fixed.
struct Force {
  std::optional<int> stages = {};
  std::optional<int64_t> micro_batches = {};
  std::optional<plan::Schedule> schedule = {};
  std::optional<int> interleave = {};
  std::optional<std::vector<int>> replicas = {};  ///< one per stage
  friend bool operator==(const Force&, const Force&) = default;
};

/// The file `rannc-plan-request` of docs/planner-files.md, field for field.
struct Request {
  int64_t global_batch = 1;
  double gradient_bytes_per_param_byte = 1;
  double optimizer_bytes_per_param_byte = 2;
  double memory_margin = 0;
  std::vector<int64_t> micro_batches;  ///< empty: all powers of two up to global_batch
  std::vector<plan::Schedule> schedules{plan::Schedule::gpipe, plan::Schedule::one_f_one_b};
  int max_interleave = 1;
  Recompute recompute = Recompute::stage;
  int reduction_buckets = 1;
  Force force;
  // Version 2:
  double master_bytes_per_param_byte = 0;  ///< copies of trainable parameters, part of their state
  bool shard_optimizer = false;            ///< the replicas of a stage share its optimizer's state
  friend bool operator==(const Request&, const Request&) = default;
};

/// Throws ConfigError with line and column, or the JSON path.
[[nodiscard]] Request request_from_json(std::string_view json);
[[nodiscard]] std::string to_json(const Request& request);

/// `micro_batches`, or its default when it is empty.
[[nodiscard]] std::vector<int64_t> allowed_micro_batches(const Request& request);

/// Throws ConfigError: a forced value that the rest of the request or the cluster forbids.
void verify(const Request& request, int ranks);

}  // namespace rannc::partition
