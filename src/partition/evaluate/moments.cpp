#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "partition/evaluate/detail.h"

// Section 6 of version 2 of docs/planner-files.md: what a rank holds at each moment.
namespace rannc::partition::evaluation {
namespace {

/// Moments that differ by rounding only are one.
constexpr double kMore = 1 + 1e-9;

/// What one stage of a rank has part in at a moment.
struct Part {
  double gradient = 0, activation = 0, buffer = 0, workspace = 0;
  [[nodiscard]] double sum() const { return gradient + activation + buffer + workspace; }
};

/// A stage at b_s rows.
struct StageFigures {
  double kept = 0;  ///< for each micro-batch in flight
  double in = 0, graph_in = 0, out = 0;
  double in_gradients = 0, out_gradients = 0;
  // Of the backward, [position of its nodes]:
  std::vector<double> saved;      ///< what is there of what this node and those before it keep
  std::vector<double> gradients;  ///< that are there, of the first backward
  std::vector<double> needed;     ///< workspace, and gradients that wait
  double all_gradients = 0;

  /// The fullest moment of a backward, of which the rank's state and what other micro-batches keep
  /// is no part. The first one makes the gradients, which are there already in a later one.
  [[nodiscard]] Part fullest(bool first) const {
    Part most;
    for (size_t i = saved.size(); i-- > 0;) {
      const Part here{
          .gradient = first ? gradients[i] : 0, .activation = saved[i], .workspace = needed[i]};
      if (i + 1 == saved.size() || here.sum() > most.sum() * kMore) most = here;
    }
    return most;
  }
};

class Figures {
 public:
  explicit Figures(const Layout& layout)
      : layout_(layout), stages_(layout.stages()), place_(layout.profile.nodes.size()) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const size_t count = layout.nodes[s].size();
      for (size_t i = 0; i < count; ++i) place_[layout.nodes[s][i]] = i;
      stages_[s].saved.assign(count, 0);
      stages_[s].needed.assign(count, 0);
    }
    find_segments();
    add_saved();
    add_values();
    for (StageFigures& stage : stages_) {
      for (size_t i = 1; i < stage.saved.size(); ++i) stage.saved[i] += stage.saved[i - 1];
    }
    for (size_t s = 0; s < stages_.size(); ++s) add_gradients(s);
  }

  const StageFigures& operator[](size_t stage) const { return stages_[stage]; }

 private:
  [[nodiscard]] double at_rows(const std::vector<double>& costs, size_t stage) const {
    return cost::cost_at(costs, layout_.profile.rows, layout_.rows[stage]);
  }

  /// Nodes of a stage, in order, all of one segment or of none.
  struct Run {
    size_t begin, end;
    bool again;
  };

  void find_segments() {
    runs_.resize(stages_.size());
    for (size_t s = 0; s < stages_.size(); ++s) {
      const std::vector<uint32_t>& nodes = layout_.nodes[s];
      for (size_t i = 0; i < nodes.size(); ++i) {
        const uint32_t segment = layout_.segment_of[nodes[i]];
        if (i == 0 || segment != layout_.segment_of[nodes[i - 1]]) {
          runs_[s].push_back({i, i, segment != Layout::kRunsOnce});
        }
        runs_[s].back().end = i + 1;
      }
    }
  }

  /// Of a forward, or of what a segment saves in its second run: from node `i` of the stage on, in
  /// whose backward it goes.
  void hold(size_t s, size_t i, double bytes) {
    const Run& run = run_at(s, i);
    add(s, i, run.again ? run.end : count(s), bytes);
    if (!run.again) stages_[s].kept += bytes;
  }

  /// What a segment takes is there until it runs again: of all segments that take a value, the
  /// first, which is the last to run.
  void keep_input(size_t s, const Run& first, double bytes) {
    add(s, first.end, count(s), bytes);
    stages_[s].kept += bytes;
  }

  [[nodiscard]] size_t count(size_t s) const { return layout_.nodes[s].size(); }
  [[nodiscard]] const Run& run_at(size_t s, size_t i) const {
    return *std::ranges::upper_bound(runs_[s], i, {}, &Run::end);
  }
  /// Bytes that are there from node `begin` of a stage up to `end`.
  void add(size_t s, size_t begin, size_t end, double bytes) {
    if (begin >= end) return;
    stages_[s].saved[begin] += bytes;  // a sum over all nodes before follows
    if (end < count(s)) stages_[s].saved[end] -= bytes;
  }

  void add_saved() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (size_t i = 0; i < layout_.nodes[s].size(); ++i) {
        const cost::ProfileNode& node = layout_.profile.nodes[layout_.nodes[s][i]];
        hold(s, i, at_rows(node.saved_bytes, s));
        stages_[s].needed[i] += at_rows(node.workspace_bytes, s);
      }
    }
    for (const cost::SavedStorage& storage : layout_.profile.saved) {
      std::map<size_t, std::vector<uint32_t>> savers;  // by stage
      for (const uint32_t node : storage.nodes) savers[layout_.stage_of[node]].push_back(node);
      for (const auto& [s, nodes] : savers) {
        // Saved by a node that does not run again, it is there from the forward on.
        const auto kept =
            std::ranges::find_if(nodes, [&](uint32_t node) { return !layout_.runs_again(node); });
        if (kept != nodes.end()) {
          const double bytes = at_rows(storage.bytes, s);
          add(s, place_[nodes.front()], count(s), bytes);
          stages_[s].kept += bytes;
          continue;
        }
        std::set<uint32_t> segments;
        for (const uint32_t node : nodes) {
          if (!segments.insert(layout_.segment_of[node]).second) continue;
          hold(s, place_[node], at_rows(storage.bytes, s));
        }
      }
    }
  }

  /// `users`: nodes that read a value, ascending; `producer`: its segment, or kRunsOnce.
  void keep_inputs(const std::vector<uint32_t>& users, uint32_t producer, const cost::Size& size) {
    std::set<size_t> met;  // stages
    for (const uint32_t node : users) {
      const uint32_t segment = layout_.segment_of[node];
      const size_t s = layout_.stage_of[node];
      if (segment == Layout::kRunsOnce || segment == producer || !met.insert(s).second) continue;
      keep_input(s, run_at(s, place_[node]), size.at(layout_.rows[s]));
    }
  }

  void add_values() {
    using Value = std::tuple<bool, uint32_t, uint32_t>;  // as ProfileUse
    std::map<Value, std::vector<uint32_t>> users;        // ascending
    for (uint32_t node = 0; node < layout_.profile.nodes.size(); ++node) {
      for (const cost::ProfileUse& use : layout_.profile.nodes[node].inputs) {
        users[{use.is_input, use.node, use.output}].push_back(node);
      }
    }
    for (const auto& [value, nodes] : users) {
      const auto [is_input, source, output] = value;
      std::map<size_t, size_t> last;  // stage that uses it -> position of its last user
      for (const uint32_t node : nodes) last[layout_.stage_of[node]] = place_[node];
      if (is_input) {
        const cost::Size& size = layout_.profile.inputs[source].size;
        keep_inputs(nodes, Layout::kRunsOnce, size);
        for (const auto& [s, at] : last) stages_[s].graph_in += size.at(layout_.rows[s]);
        continue;
      }
      const cost::ProfileOutput& made = layout_.profile.nodes[source].outputs[output];
      keep_inputs(nodes, layout_.segment_of[source], made.size);
      const size_t home = layout_.stage_of[source];
      const bool leaves = last.size() > (last.contains(home) ? 1U : 0U);
      if (leaves) last[home] = layout_.nodes[home].size();
      for (const auto& [s, end] : last) {
        const double bytes = made.size.at(layout_.rows[s]);
        StageFigures& stage = stages_[s];
        if (s != home) {
          stage.in += bytes;
          if (made.grad) stage.in_gradients += bytes;
        } else if (leaves) {
          stage.out += bytes;
          if (made.grad) stage.out_gradients += bytes;
        }
        if (!made.grad) continue;
        for (size_t i = s == home ? place_[source] + 1 : 0; i < end; ++i) stage.needed[i] += bytes;
      }
    }
  }

  /// Those of a parameter that a later stage of the same ranks uses, too, are there before.
  void add_gradients(size_t s) {
    StageFigures& stage = stages_[s];
    std::set<uint32_t> made;
    for (size_t later = s + layout_.groups; later < stages_.size(); later += layout_.groups) {
      for (const uint32_t node : layout_.nodes[later]) {
        const std::vector<uint32_t>& used = layout_.profile.nodes[node].params;
        made.insert(used.begin(), used.end());
      }
    }
    stage.gradients.assign(stage.saved.size(), 0);
    for (size_t i = stage.saved.size(); i-- > 0;) {
      const cost::ProfileNode& node = layout_.profile.nodes[layout_.nodes[s][i]];
      const double before = stage.all_gradients;
      for (const uint32_t param : node.params) {
        if (!layout_.profile.params[param].trainable || !made.insert(param).second) continue;
        stage.all_gradients +=
            layout_.profile.params[param].bytes * layout_.request.gradient_bytes_per_param_byte;
      }
      stage.gradients[i] = node.adds_in_place ? stage.all_gradients : before;
    }
  }

  const Layout& layout_;
  std::vector<StageFigures> stages_;
  std::vector<size_t> place_;           // [node] in its stage
  std::vector<std::vector<Run>> runs_;  // [stage]
};

/// A rank of one group, along the order of its actions.
class Rank {
 public:
  Rank(const Layout& layout, const Figures& figures, size_t group)
      : figures_(figures),
        actions_until_gone_(actions_until_gone(layout)),
        now_(layout.stages()),
        fullest_(layout.stages()) {
    for (size_t s = group; s < layout.stages(); s += layout.groups) {
      stages_.push_back(s);
      first_[s] = figures[s].fullest(true);
      later_[s] = figures[s].fullest(false);
    }
    const StateBytes state = state_bytes(layout, stages_);
    state_bytes_ = state.param + state.optimizer;
  }

  void run(std::span<const Action> order) {
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t s = order[k].stage;
      const StageFigures& stage = figures_[s];
      next_ = k + 1 < order.size() ? &order[k + 1] : nullptr;
      if (order[k].backward) {
        now_[s].activation -= stage.kept;
        look(s, began_.insert(s).second ? first_[s] : later_[s]);
        now_[s].gradient = stage.all_gradients;
        send(s, stage.in_gradients);
      } else {
        now_[s].activation += stage.kept;
        look(s, {});
        send(s, stage.out);
      }
      look(s, {});
    }
  }

  [[nodiscard]] const std::vector<size_t>& stages() const { return stages_; }
  [[nodiscard]] double peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] const Part& part(size_t stage) const { return fullest_[stage]; }

 private:
  /// A moment of stage `s` with `more` than between its actions.
  void look(size_t s, const Part& more) {
    double bytes = state_bytes_ + more.sum() + posted();
    for (const Sent& sent : sent_) bytes += sent.bytes;
    for (const size_t stage : stages_) bytes += now_[stage].sum();
    if (bytes <= peak_bytes_ * kMore) return;
    peak_bytes_ = bytes;
    fullest_ = now_;
    fullest_[s].gradient += more.gradient;
    fullest_[s].activation += more.activation;
    fullest_[s].workspace += more.workspace;
    for (const Sent& sent : sent_) fullest_[sent.stage].buffer += sent.bytes;
    if (next_ != nullptr) fullest_[next_->stage].buffer += posted();
  }

  /// Of stage `s`, when its action has ended; what was sent long ago is gone then.
  void send(size_t s, double bytes) {
    sent_.push_back({s, bytes});
    if (sent_.size() > actions_until_gone_) sent_.erase(sent_.begin());
  }

  static size_t actions_until_gone(const Layout& layout) {
    if (layout.plan.schedule != plan::Schedule::interleaved) return 1;
    return layout.groups == 2 ? 2 : 3;
  }

  /// What the next action needs is received while this one computes.
  [[nodiscard]] double posted() const {
    if (next_ == nullptr) return 0;
    const StageFigures& stage = figures_[next_->stage];
    return next_->backward ? stage.out_gradients : stage.in;
  }

  struct Sent {
    size_t stage;
    double bytes;
  };

  const Figures& figures_;
  const size_t actions_until_gone_;
  std::vector<size_t> stages_;
  double state_bytes_ = 0;
  std::map<size_t, Part> first_, later_;  // backwards of each stage
  std::vector<Part> now_, fullest_;       // [stage] between actions; at the fullest moment
  std::set<size_t> began_;                // stages with a backward
  std::vector<Sent> sent_;                // by the actions before, until others have it
  const Action* next_ = nullptr;
  double peak_bytes_ = 0;
};

}  // namespace

void evaluate_moments(const Layout& layout, const std::vector<std::vector<Action>>& orders,
                      std::vector<StageEvaluation>& stages) {
  const Figures figures(layout);
  for (size_t group = 0; group < layout.groups; ++group) {
    Rank rank(layout, figures, group);
    rank.run(orders[group]);
    for (const size_t s : rank.stages()) {
      StageEvaluation& stage = stages[s];
      const StateBytes state = state_bytes(layout, {s});
      const Part& part = rank.part(s);
      stage.in_bytes = figures[s].in;
      stage.graph_input_bytes = figures[s].graph_in;
      stage.out_bytes = figures[s].out;
      stage.param_bytes = state.param;
      stage.optimizer_bytes = state.optimizer;
      stage.gradient_bytes = part.gradient;
      stage.activation_bytes = part.activation;
      stage.buffer_bytes = part.buffer;
      stage.workspace_bytes = part.workspace;
      stage.peak_bytes = rank.peak_bytes();
    }
  }
}

}  // namespace rannc::partition::evaluation
