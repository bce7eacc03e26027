#include "rannc/cost/graph_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw ConfigError(fmt::format("graph profile: {}: {}", path, why));
}

// The path is put together only when it is needed: profiles have millions of numbers.
template <class... Parts>
void check_number(double value, fmt::format_string<const Parts&...> path, const Parts&... parts) {
  if (!std::isfinite(value) || value < 0) {
    fail(fmt::format(path, parts...),
         fmt::format("expected a finite number of at least 0, found {}", value));
  }
}

void check_rows(const std::vector<int64_t>& rows) {
  if (rows.empty()) fail("$.rows", "expected at least one number of rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 1 || (i > 0 && rows[i] <= rows[i - 1])) {
      fail(fmt::format("$.rows[{}]", i),
           fmt::format("rows must be at least 1 and rise strictly, found {}", rows[i]));
    }
  }
}

/// Names of inputs and nodes share one name space, as uses do not say which they mean.
class Names {
 public:
  void define(const std::string& path, const std::string& name) {
    if (name.empty()) fail(path, "the name is empty");
    if (name.find(':') != std::string::npos) {
      fail(path, fmt::format("the name '{}' contains ':'", name));
    }
    if (!names_.insert(name).second) fail(path, fmt::format("the name '{}' occurs twice", name));
  }

 private:
  std::unordered_set<std::string_view> names_;
};

void check_costs(const std::string& path, std::string_view key, const std::vector<double>& values,
                 size_t count) {
  if (values.size() != count) {
    fail(fmt::format("{}.{}", path, key),
         fmt::format("{} numbers, but 'rows' has {}", values.size(), count));
  }
  for (size_t i = 0; i < count; ++i) check_number(values[i], "{}.{}[{}]", path, key, i);
}

void check_uses(const std::string& path, const GraphProfile& profile, size_t node_index) {
  const ProfileNode& node = profile.nodes[node_index];
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ProfileUse& use = node.inputs[i];
    const size_t producers = use.is_input ? profile.inputs.size() : node_index;
    if (use.node >= producers) {
      fail(fmt::format("{}.inputs[{}]", path, i), "is no graph input and no earlier node");
    }
    const size_t outputs = use.is_input ? 1 : profile.nodes[use.node].outputs.size();
    if (use.output >= outputs) {
      fail(fmt::format("{}.inputs[{}]", path, i),
           fmt::format("output {} of a node with {} outputs", use.output, outputs));
    }
  }
  for (size_t i = 0; i < node.params.size(); ++i) {
    if (node.params[i] >= profile.params.size()) {
      fail(fmt::format("{}.params[{}]", path, i), "is not in 'params'");
    }
  }
}

}  // namespace

void verify(const GraphProfile& profile) {
  check_rows(profile.rows);
  Names names;
  for (size_t i = 0; i < profile.inputs.size(); ++i) {
    const std::string path = fmt::format("$.inputs[{}]", i);
    names.define(path + ".name", profile.inputs[i].name);
    check_number(profile.inputs[i].size.bytes_per_row, "{}.bytes_per_row", path);
    check_number(profile.inputs[i].size.fixed_bytes, "{}.fixed_bytes", path);
  }
  std::unordered_set<std::string_view> params;
  for (size_t i = 0; i < profile.params.size(); ++i) {
    const ProfileParam& param = profile.params[i];
    const std::string path = fmt::format("$.params[{}]", i);
    if (!params.insert(param.id).second) {
      fail(path + ".id", fmt::format("parameter '{}' occurs twice", param.id));
    }
    check_number(param.bytes, "{}.bytes", path);
    if (param.optimizer_bytes != -1) {
      check_number(param.optimizer_bytes, "{}.optimizer_bytes", path);
    }
  }
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfileNode& node = profile.nodes[i];
    const std::string path = fmt::format("$.nodes[{}]", i);
    names.define(path + ".name", node.name);
    check_uses(path, profile, i);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      check_number(node.outputs[o].size.bytes_per_row, "{}.outputs[{}].bytes_per_row", path, o);
      check_number(node.outputs[o].size.fixed_bytes, "{}.outputs[{}].fixed_bytes", path, o);
    }
    const size_t count = profile.rows.size();
    check_costs(path, "forward_ns", node.forward_ns, count);
    check_costs(path, "backward_ns", node.backward_ns, count);
    check_costs(path, "saved_bytes", node.saved_bytes, count);
    check_costs(path, "workspace_bytes", node.workspace_bytes, count);
    for (const auto& [key, values] : {std::pair{"forward_host_ns", &node.forward_host_ns},
                                      std::pair{"backward_host_ns", &node.backward_host_ns}}) {
      if (values->empty()) continue;
      if (profile.version < 2) {
        fail(fmt::format("{}.{}", path, key),
             "is of version 2 of the file, and the profile of version 1");
      }
      check_costs(path, key, *values, count);
    }
  }
  for (size_t i = 0; i < profile.saved.size(); ++i) {
    const SavedStorage& storage = profile.saved[i];
    const std::string path = fmt::format("$.saved[{}]", i);
    if (profile.version < 2)
      fail(path, "is of version 2 of the file, and the profile of version 1");
    if (storage.nodes.empty()) fail(path + ".nodes", "names no node");
    for (size_t k = 0; k < storage.nodes.size(); ++k) {
      if (storage.nodes[k] >= profile.nodes.size()) {
        fail(fmt::format("{}.nodes[{}]", path, k), "is no node");
      }
      if (k > 0 && storage.nodes[k] <= storage.nodes[k - 1]) {
        fail(fmt::format("{}.nodes[{}]", path, k), "is not behind the node before it");
      }
    }
    check_costs(path, "bytes", storage.bytes, profile.rows.size());
  }
}

bool GraphProfile::has_host_times() const {
  return std::ranges::any_of(nodes, [](const ProfileNode& node) {
    return !node.forward_host_ns.empty() || !node.backward_host_ns.empty();
  });
}

double cost_at(const std::vector<double>& values, const std::vector<int64_t>& points, double rows) {
  RANNC_CHECK(!points.empty() && values.size() == points.size(),
              fmt::format("{} costs for {} points", values.size(), points.size()));
  if (points.size() == 1) return values[0] * rows / static_cast<double>(points[0]);
  // The segment that holds `rows`, or the nearest one.
  const auto above = std::ranges::lower_bound(
      points, rows, {}, [](int64_t point) { return static_cast<double>(point); });
  const size_t right = std::clamp<size_t>(above - points.begin(), 1, points.size() - 1);
  const auto from = static_cast<double>(points[right - 1]);
  const auto to = static_cast<double>(points[right]);
  const double slope = (values[right] - values[right - 1]) / (to - from);
  return std::max(0.0, values[right - 1] + slope * (rows - from));
}

}  // namespace rannc::cost
