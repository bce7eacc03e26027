#include "partition/segments/fold.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "rannc/cost/fold_modules.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

void add(std::vector<double>& sums, const std::vector<double>& more) {
  if (sums.empty()) sums.assign(more.size(), 0);
  for (size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
}

class SegmentFolder {
 public:
  SegmentFolder(const cost::GraphProfile& profile, const std::vector<NodeRange>& segments)
      : profile_(profile) {
    uint32_t next = 0;
    const auto single = [&](uint32_t end) {
      for (; next < end; ++next) add_run({next, next + 1}, false);
    };
    for (const NodeRange& segment : segments) {
      RANNC_CHECK(segment.begin >= next && segment.begin < segment.end, "segments in order");
      single(segment.begin);
      add_run(segment, true);
      next = segment.end;
    }
    single(static_cast<uint32_t>(profile.nodes.size()));
  }

  FoldedSegments fold() {
    std::vector<uint32_t> begins;
    for (const NodeRange& run : runs_) begins.push_back(run.begin);
    folded_ = cost::fold_runs(profile_, begins);
    find_saved();
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      if (again_[run]) change(run);
    }
    keep_inputs();
    folded_.name = profile_.name;
    cost::verify(folded_);
    return {std::move(folded_), runs_, again_};
  }

 private:
  void add_run(NodeRange run, bool again) {
    run_of_.resize(run.end, static_cast<uint32_t>(runs_.size()));
    runs_.push_back(run);
    again_.push_back(again);
  }

  /// What is kept: of several nodes by those that do not run again, if any does not.
  void find_saved() {
    folded_.saved.clear();
    inner_.resize(runs_.size());
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      if (!again_[run])
        folded_.nodes[run].saved_bytes = profile_.nodes[runs_[run].begin].saved_bytes;
    }
    for (const cost::SavedStorage& storage : profile_.saved) {
      cost::SavedStorage kept{{}, storage.bytes};
      for (const uint32_t node : storage.nodes) {
        const uint32_t run = run_of_[node];
        if (!again_[run]) kept.nodes.push_back(run);
      }
      if (!kept.nodes.empty()) {
        folded_.saved.push_back(std::move(kept));
        continue;
      }
      uint32_t before = UINT32_MAX;
      for (const uint32_t node : storage.nodes) {
        if (run_of_[node] != before) inner_[run_of_[node]].emplace(node, &storage.bytes);
        before = run_of_[node];
      }
    }
  }

  /// The second run of a segment, and what is there at the fullest moment of its backward.
  void change(uint32_t run) {
    cost::ProfileNode& node = folded_.nodes[run];
    add(node.backward_ns, node.forward_ns);
    if (!node.forward_host_ns.empty()) add(node.backward_host_ns, node.forward_host_ns);
    const size_t points = profile_.rows.size();
    std::vector<double> saved(points, 0), most(points, 0);
    for (uint32_t index = runs_[run].begin; index < runs_[run].end; ++index) {
      const cost::ProfileNode& member = profile_.nodes[index];
      add(saved, member.saved_bytes);
      const auto [first, last] = inner_[run].equal_range(index);
      for (auto storage = first; storage != last; ++storage) add(saved, *storage->second);
      for (size_t i = 0; i < points; ++i) {
        most[i] = std::max(most[i], saved[i] + member.workspace_bytes[i]);
      }
    }
    if (profile_.version == 1) {  // its largest workspace is beside all that is saved
      for (size_t i = 0; i < points; ++i) most[i] = saved[i] + node.workspace_bytes[i];
    }
    node.workspace_bytes = std::move(most);
    node.saved_bytes.assign(points, 0);
  }

  /// Each value that segments take is kept once, by all of them.
  void keep_inputs() {
    std::map<std::tuple<bool, uint32_t, uint32_t>, std::vector<uint32_t>> takers;
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      if (!again_[run]) continue;
      for (const cost::ProfileUse& use : folded_.nodes[run].inputs) {
        takers[{use.is_input, use.node, use.output}].push_back(run);
      }
    }
    for (const auto& [value, runs] : takers) {
      const auto [is_input, source, output] = value;
      const cost::Size& size =
          is_input ? folded_.inputs[source].size : folded_.nodes[source].outputs[output].size;
      std::vector<double> bytes;
      for (const int64_t rows : profile_.rows) bytes.push_back(size.at(static_cast<double>(rows)));
      // It is handed to the first of them, which runs last, as part of what that saves.
      std::vector<double>& workspace = folded_.nodes[runs.front()].workspace_bytes;
      for (size_t i = 0; i < bytes.size(); ++i) {
        workspace[i] =
            profile_.version == 1 ? workspace[i] : std::max(0.0, workspace[i] - bytes[i]);
      }
      if (runs.size() > 1 && profile_.version > 1) {
        folded_.saved.push_back({runs, std::move(bytes)});
      } else {
        add(folded_.nodes[runs.front()].saved_bytes, bytes);
      }
    }
  }

  const cost::GraphProfile& profile_;
  std::vector<NodeRange> runs_;
  std::vector<bool> again_;       // [run]
  std::vector<uint32_t> run_of_;  // [node]
  /// [run] what a segment saves in its second run together with other nodes, by its first node.
  std::vector<std::multimap<uint32_t, const std::vector<double>*>> inner_;
  cost::GraphProfile folded_;
};

}  // namespace

FoldedSegments fold_segments(const cost::GraphProfile& profile,
                             const std::vector<NodeRange>& segments) {
  return SegmentFolder(profile, segments).fold();
}

plan::Plan unfolded(const FoldedSegments& folded, const cost::GraphProfile& profile,
                    const plan::Plan& plan) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t node = 0; node < folded.profile.nodes.size(); ++node) {
    index.emplace(folded.profile.nodes[node].name, node);
  }
  plan::Plan result = plan;
  result.notes.clear();
  result.step = {};
  for (plan::Stage& stage : result.stages) {
    std::vector<size_t> members;
    for (const std::string& name : stage.nodes) members.push_back(index.at(name));
    std::ranges::sort(members);
    stage.nodes.clear();
    stage.predicted.reset();
    stage.notes.clear();
    for (const size_t member : members) {
      std::vector<std::string> names;
      for (uint32_t node = folded.nodes[member].begin; node < folded.nodes[member].end; ++node) {
        names.push_back(profile.nodes[node].name);
      }
      stage.nodes.insert(stage.nodes.end(), names.begin(), names.end());
      if (folded.again[member] && !stage.recompute) stage.segments.push_back(std::move(names));
    }
  }
  return result;
}

}  // namespace rannc::partition
