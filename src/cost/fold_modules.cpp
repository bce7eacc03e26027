#include "rannc/cost/fold_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// The first `depth` components of the path of the module that called a node; 0: all of them.
std::string_view module_path(std::string_view node_name, int depth) {
  const size_t dot = node_name.rfind('.');
  std::string_view path = dot == std::string_view::npos ? "" : node_name.substr(0, dot);
  size_t end = 0;
  for (int i = 0; i < depth; ++i) {
    end = path.find('.', end + (i > 0 ? 1 : 0));
    if (end == std::string_view::npos) return path;
  }
  return depth > 0 ? path.substr(0, end) : path;
}

void add(std::vector<double>& sums, const std::vector<double>& values) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

class ModuleFolder {
 public:
  ModuleFolder(const GraphProfile& profile, int depth) : profile_(profile) {
    for (const ProfileInput& input : profile.inputs) taken_.insert(input.name);
    std::string_view previous;
    for (uint32_t index = 0; index < profile.nodes.size(); ++index) {
      const std::string_view path = module_path(profile.nodes[index].name, depth);
      if (index == 0 || path != previous) runs_.push_back({index, index, path});
      runs_.back().end = index + 1;
      run_of_.push_back(static_cast<uint32_t>(runs_.size() - 1));
      previous = path;
    }
  }

  ModuleFolder(const GraphProfile& profile, const std::vector<uint32_t>& begins)
      : profile_(profile) {
    for (const ProfileInput& input : profile.inputs) taken_.insert(input.name);
    const auto count = static_cast<uint32_t>(profile.nodes.size());
    for (size_t run = 0; run < begins.size(); ++run) {
      const uint32_t end = run + 1 < begins.size() ? begins[run + 1] : count;
      runs_.push_back({begins[run], end, ""});
      run_of_.resize(end, static_cast<uint32_t>(run));
    }
  }

  GraphProfile fold() {
    find_outputs();
    GraphProfile folded{.version = profile_.version,
                        .name = profile_.name,
                        .dtype = profile_.dtype,
                        .rows = profile_.rows,
                        .inputs = profile_.inputs,
                        .params = profile_.params,
                        .nodes = {}};
    const std::vector<std::string> groups = join_groups();
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      folded.nodes.push_back(fold_run(run));
      folded.nodes.back().group = groups[run];
    }
    for (const SavedStorage& storage : profile_.saved) add_storage(folded, storage);
    return folded;
  }

 private:
  struct Run {
    uint32_t begin, end;
    std::string_view path;
  };

  void add_storage(GraphProfile& folded, const SavedStorage& storage) const {
    SavedStorage result{.nodes = {}, .bytes = storage.bytes};
    for (const uint32_t node : storage.nodes) {
      const uint32_t run = run_of_[node];
      if (result.nodes.empty() || result.nodes.back() != run) result.nodes.push_back(run);
    }
    if (result.nodes.size() > 1) {
      folded.saved.push_back(std::move(result));
    } else {
      add(folded.nodes[result.nodes.front()].saved_bytes, storage.bytes);
    }
  }

  /// Numbers the outputs that leave each run: those that later runs read, in order of production.
  void find_outputs() {
    std::vector<std::vector<bool>> leaves;
    for (const ProfileNode& node : profile_.nodes) leaves.emplace_back(node.outputs.size());
    std::vector<bool> read(runs_.size());
    for (uint32_t index = 0; index < profile_.nodes.size(); ++index) {
      for (const ProfileUse& use : profile_.nodes[index].inputs) {
        if (use.is_input || run_of_[use.node] == run_of_[index]) continue;
        leaves[use.node].at(use.output) = true;
        read[run_of_[use.node]] = true;
      }
    }
    // Results of the model are read by nobody: they are those of runs that no other run reads.
    std::vector<bool> read_inside(profile_.nodes.size());
    for (const ProfileNode& node : profile_.nodes) {
      for (const ProfileUse& use : node.inputs) {
        if (!use.is_input) read_inside[use.node] = true;
      }
    }
    uint32_t next = 0;
    for (uint32_t index = 0; index < profile_.nodes.size(); ++index) {
      const Run& run = runs_[run_of_[index]];
      if (index == run.begin) next = 0;
      const bool result = !read[run_of_[index]] && !read_inside[index];
      std::vector<uint32_t>& places = output_.emplace_back(leaves[index].size(), kNone);
      for (size_t i = 0; i < places.size(); ++i) {
        if (leaves[index][i] || result) places[i] = next++;
      }
    }
  }

  ProfileNode fold_run(uint32_t index) {
    const Run& run = runs_[index];
    const ProfileNode& first = profile_.nodes[run.begin];
    ProfileNode folded;
    folded.name = unique(run.path.empty() ? first.name : std::string(run.path));
    folded.op = run.end - run.begin == 1 ? first.op : "module";
    folded.module = first.module;
    folded.source = first.source;
    folded.adds_in_place = true;
    const size_t points = profile_.rows.size();
    folded.forward_ns.assign(points, 0);
    folded.backward_ns.assign(points, 0);
    folded.saved_bytes.assign(points, 0);
    folded.workspace_bytes.assign(points, 0);
    std::unordered_set<uint64_t> uses;
    std::unordered_set<uint32_t> params;
    for (uint32_t member = run.begin; member < run.end; ++member) {
      const ProfileNode& node = profile_.nodes[member];
      add(folded.forward_ns, node.forward_ns);
      add(folded.backward_ns, node.backward_ns);
      add(folded.saved_bytes, node.saved_bytes);
      if (!node.forward_host_ns.empty()) {
        folded.forward_host_ns.resize(points);
        add(folded.forward_host_ns, node.forward_host_ns);
      }
      if (!node.backward_host_ns.empty()) {
        folded.backward_host_ns.resize(points);
        add(folded.backward_host_ns, node.backward_host_ns);
      }
      folded.adds_in_place &= node.adds_in_place || node.params.empty();
      for (size_t i = 0; i < points; ++i) {
        folded.workspace_bytes[i] = std::max(folded.workspace_bytes[i], node.workspace_bytes[i]);
      }
      for (uint32_t param : node.params) {
        if (params.insert(param).second) folded.params.push_back(param);
      }
      for (const ProfileUse& use : node.inputs) {
        if (!use.is_input && run_of_[use.node] == index) continue;
        ProfileUse outside = use;
        if (!use.is_input) outside = {false, run_of_[use.node], output_[use.node].at(use.output)};
        const uint64_t key = (uint64_t{outside.is_input} << 63) | (uint64_t{outside.node} << 32);
        if (uses.insert(key | outside.output).second) folded.inputs.push_back(outside);
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (output_[member][i] != kNone) folded.outputs.push_back(node.outputs[i]);
      }
    }
    folded.adds_in_place &= !folded.params.empty();
    return folded;
  }

  std::string unique(const std::string& name) {
    std::string candidate = name;
    while (!taken_.insert(candidate).second) {
      candidate = fmt::format("{}_{}", name, ++repeats_[name]);
    }
    return candidate;
  }

  /// For each run the name of its group, that of the group's first run; empty without a group.
  /// Runs that hold a part of one group become one, and a run that holds two groups joins them.
  std::vector<std::string> join_groups() const {
    std::vector<uint32_t> root(runs_.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](uint32_t run) {
      while (root[run] != run) run = root[run] = root[root[run]];
      return run;
    };
    std::unordered_map<std::string_view, uint32_t> run_with;
    std::vector<uint32_t> members(runs_.size(), 1);
    for (uint32_t index = 0; index < profile_.nodes.size(); ++index) {
      const std::string& group = profile_.nodes[index].group;
      if (group.empty()) continue;
      const uint32_t first = find(run_with.emplace(group, run_of_[index]).first->second);
      const uint32_t other = find(run_of_[index]);
      if (first == other) continue;
      root[std::max(first, other)] = std::min(first, other);
      members[std::min(first, other)] += members[std::max(first, other)];
    }
    std::vector<std::string> names(runs_.size());
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      const uint32_t first = find(run);
      if (members[first] > 1) names[run] = profile_.nodes[runs_[first].begin].name;
    }
    return names;
  }

  const GraphProfile& profile_;
  std::vector<Run> runs_;
  std::vector<uint32_t> run_of_;               // [node]
  std::vector<std::vector<uint32_t>> output_;  // [node][output] which output of its run, or kNone
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> repeats_;
};

}  // namespace

GraphProfile fold_modules(const GraphProfile& profile, int depth) {
  if (depth < 0) throw ConfigError(fmt::format("depth must be at least 0, found {}", depth));
  GraphProfile folded = ModuleFolder(profile, depth).fold();
  verify(folded);
  return folded;
}

GraphProfile fold_runs(const GraphProfile& profile, const std::vector<uint32_t>& begins) {
  RANNC_CHECK(!begins.empty() && begins.front() == 0, "runs of nodes begin with the first");
  return ModuleFolder(profile, begins).fold();
}

}  // namespace rannc::cost
