#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rannc/cost/cost_table.h"
#include "rannc/cost/saved_storage.h"
#include "rannc/ir/graph.h"

namespace rannc::cost {

// The planner's only input: the file `rannc-graph-profile` of docs/planner-files.md, field for
// field. Sizes and times are doubles, as that page demands.

struct Size {
  double bytes_per_row = 0;
  double fixed_bytes = 0;
  [[nodiscard]] double at(double rows) const { return bytes_per_row * rows + fixed_bytes; }
  friend bool operator==(const Size&, const Size&) = default;
};

struct ProfileInput {
  std::string name;
  Size size;
  friend bool operator==(const ProfileInput&, const ProfileInput&) = default;
};

struct ProfileParam {
  std::string id;
  double bytes = 0;
  bool trainable = true;
  double optimizer_bytes = -1;  ///< -1: the request's factor times `bytes`
  friend bool operator==(const ProfileParam&, const ProfileParam&) = default;
};

/// A value read by a node: output `output` of node `node`, or graph input `node` when `is_input`.
struct ProfileUse {
  bool is_input = false;
  uint32_t node = 0;
  uint32_t output = 0;
  friend bool operator==(const ProfileUse&, const ProfileUse&) = default;
};

struct ProfileOutput {
  Size size;
  bool grad = true;
  friend bool operator==(const ProfileOutput&, const ProfileOutput&) = default;
};

struct ProfileNode {
  std::string name;
  std::string op;
  std::vector<ProfileUse> inputs;
  std::vector<uint32_t> params;  ///< indices into GraphProfile::params
  std::vector<ProfileOutput> outputs;
  std::vector<double> forward_ns, backward_ns, saved_bytes, workspace_bytes;  ///< one per `rows`
  std::string group;  ///< nodes with the same non-empty group share a stage
  // Version 2:
  bool adds_in_place = false;  ///< its backward adds to the sum of its parameters' gradients itself
  std::string module = {};     ///< path of the module that it is of
  std::string source = {};     ///< line of the user's code
  /// What the host takes to issue it to an accelerator, one per `rows`; empty: nothing.
  std::vector<double> forward_host_ns = {}, backward_host_ns = {};
  friend bool operator==(const ProfileNode&, const ProfileNode&) = default;
};

struct GraphProfile {
  int version = 1;  ///< of the file: decides which account of memory holds (section 6)
  std::string name;
  std::string dtype = "float32";
  std::vector<int64_t> rows;
  std::vector<ProfileInput> inputs;
  std::vector<ProfileParam> params;
  std::vector<ProfileNode> nodes;  ///< topological order
  /// Version 2: what several nodes save together; `saved_bytes` is what only one node saves.
  std::vector<SavedStorage> saved = {};

  /// Whether any node has a time of the host.
  [[nodiscard]] bool has_host_times() const;
  friend bool operator==(const GraphProfile&, const GraphProfile&) = default;
};

/// Throws ConfigError naming the JSON path: order, names, lengths, ranges.
void verify(const GraphProfile& profile);

[[nodiscard]] std::string to_json(const GraphProfile& profile);
/// Reads through SAX with limits; throws ConfigError with line and column, or the JSON path.
[[nodiscard]] GraphProfile graph_profile_from_json(std::string_view json);

/// A cost array at `rows`: linear between neighbouring points, the nearest segment extended
/// outside, never below 0; with one point proportional.
[[nodiscard]] double cost_at(const std::vector<double>& values, const std::vector<int64_t>& points,
                             double rows);

/// The same where an empty array stands for nothing, as with times of the host.
[[nodiscard]] inline double optional_cost_at(const std::vector<double>& values,
                                             const std::vector<int64_t>& points, double rows) {
  return values.empty() ? 0.0 : cost_at(values, points, rows);
}

using NodePairs = std::vector<std::pair<ir::NodeId, ir::NodeId>>;

/// Folds a graph and its costs into the planner's input. One profile node per node of `graph` that
/// depends on the rows, with the same name; row-independent nodes are charged to each user
/// (their cost and parameters), as they are cloned there. `optimizer_bytes`: one number for each
/// parameter and buffer of `graph` in value order, those of buffers unused; empty: the request's
/// factor. Constants count as frozen parameters. `saved`: what nodes of `graph` save, instead of
/// the table's `saved_bytes`; then it is of version 2, as it is with times of the host. Empty:
/// these. `joined`: nodes that share a stage, beside those that any plan keeps together. Requires
/// infer_rows().
[[nodiscard]] GraphProfile fold(const ir::Graph& graph, const CostTable& table,
                                const std::vector<double>& optimizer_bytes,
                                const std::vector<SavedStorage>& saved = {},
                                const NodePairs& joined = {});

}  // namespace rannc::cost
