#include "partition/score/pipeline_clock.h"

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

int64_t chunks(const Pipeline& pipeline) {
  return static_cast<int64_t>(pipeline.forward_ns.size()) / pipeline.groups;
}

/// Forwards before the first backward.
int64_t warm_up(const Pipeline& pipeline, int group) {
  const int64_t m = pipeline.micro_batches, p = pipeline.groups, v = chunks(pipeline);
  switch (pipeline.schedule) {
    case plan::Schedule::gpipe:
      return m;
    case plan::Schedule::one_f_one_b:
      return std::min<int64_t>(m, p - 1 - group);
    case plan::Schedule::interleaved:
      break;
  }
  return std::min(v * m, 2 * (p - 1 - group) + (v - 1) * p);
}

}  // namespace

ComputeAction action_at(const Pipeline& pipeline, int group, int64_t position) {
  const int64_t v = chunks(pipeline), p = pipeline.groups, all = v * pipeline.micro_batches;
  const int64_t first = warm_up(pipeline, group);
  int64_t n = position;
  bool backward = false;
  if (position >= 2 * all - first) {
    n = position - all;
    backward = true;
  } else if (position >= first) {
    const int64_t pair = (position - first) / 2;
    backward = (position - first) % 2 == 1;
    n = backward ? pair : first + pair;
  }
  if (v == 1) return {group, n, backward};
  const int64_t turn = n / p % v;
  const int64_t chunk = backward ? v - 1 - turn : turn;
  return {static_cast<int>(chunk * p) + group, n / (p * v) * p + n % p, backward};
}

namespace {

class Clock {
 public:
  explicit Clock(const Pipeline& pipeline)
      : pipeline_(pipeline),
        stages_(pipeline.forward_ns.size()),
        m_(static_cast<size_t>(pipeline.micro_batches)),
        into_(stages_),
        out_of_(stages_),
        last_(stages_, 0.0) {
    std::vector<int> waits_forward(stages_, 0), waits_backward(stages_, 1);
    for (size_t k = 0; k < pipeline.transfers.size(); ++k) {
      const StageTransfer& transfer = pipeline.transfers[k];
      const auto from = static_cast<size_t>(transfer.from), to = static_cast<size_t>(transfer.to);
      out_of_[from].push_back(k);
      ++waits_forward[to];
      if (!transfer.has_backward) continue;
      into_[to].push_back(k);
      ++waits_backward[from];
    }
    forward_.resize(stages_ * m_);
    backward_.resize(stages_ * m_);
    for (size_t stage = 0; stage < stages_; ++stage) {
      for (size_t k = 0; k < m_; ++k) {
        forward_[stage * m_ + k].missing = waits_forward[stage];
        backward_[stage * m_ + k].missing = waits_backward[stage];
      }
    }
    forward_free_.assign(pipeline.transfers.size(), 0.0);
    backward_free_ = forward_free_;
  }

  std::vector<double> run() {
    const auto groups = static_cast<size_t>(pipeline_.groups);
    const auto actions = static_cast<int64_t>(2 * m_ * stages_ / groups);
    std::vector<int64_t> next(groups, 0);
    std::vector<double> free(groups, 0.0);
    std::vector<bool> listed(groups, true);
    std::vector<size_t> awake;
    for (size_t group = groups; group-- > 0;) awake.push_back(group);
    while (!awake.empty()) {
      const size_t group = awake.back();
      awake.pop_back();
      listed[group] = false;
      for (; next[group] < actions; ++next[group]) {
        const ComputeAction action = action_at(pipeline_, static_cast<int>(group), next[group]);
        const auto stage = static_cast<size_t>(action.stage);
        const size_t cell = stage * m_ + static_cast<size_t>(action.micro_batch);
        const Arrival& data = action.backward ? backward_[cell] : forward_[cell];
        if (data.missing > 0) break;
        const double start = std::max(free[group], data.time_ns);
        const double end =
            start + (action.backward ? pipeline_.backward_ns : pipeline_.forward_ns)[stage];
        free[group] = end;
        if (action.backward) {
          last_[stage] = end;
        } else {
          arrive(backward_[cell], end);
        }
        for (const size_t k : action.backward ? into_[stage] : out_of_[stage]) {
          const StageTransfer& transfer = pipeline_.transfers[k];
          double& link = (action.backward ? backward_free_ : forward_free_)[k];
          link =
              std::max(end, link) + (action.backward ? transfer.backward_ns : transfer.forward_ns);
          const auto to = static_cast<size_t>(action.backward ? transfer.from : transfer.to);
          Arrival& waiting = (action.backward ? backward_ : forward_)[to * m_ + cell % m_];
          arrive(waiting, link);
          const size_t peer = to % groups;
          if (waiting.missing > 0 || peer == group || listed[peer]) continue;
          listed[peer] = true;
          awake.push_back(peer);
        }
      }
    }
    for (const int64_t done : next) RANNC_CHECK(done == actions, "a group of ranks is stuck");
    return std::move(last_);
  }

 private:
  struct Arrival {
    double time_ns = 0;
    int missing = 0;
  };
  static void arrive(Arrival& arrival, double time_ns) {
    arrival.time_ns = std::max(arrival.time_ns, time_ns);
    --arrival.missing;
  }

  const Pipeline& pipeline_;
  size_t stages_, m_;
  std::vector<std::vector<size_t>> into_, out_of_;  // [stage]; into: those that go back, too
  std::vector<Arrival> forward_, backward_;         // [stage * m + micro-batch]
  std::vector<double> forward_free_, backward_free_;
  std::vector<double> last_;
};

}  // namespace

std::vector<double> last_backwards(const Pipeline& pipeline) { return Clock(pipeline).run(); }

double pipeline_bound_ns(const Pipeline& pipeline) {
  const size_t stages = pipeline.forward_ns.size();
  const auto m = static_cast<double>(pipeline.micro_batches);
  std::vector<double> work(static_cast<size_t>(pipeline.groups), 0.0);
  std::vector<double> way(stages, 0.0), back(stages, 0.0);
  if (pipeline.schedule != plan::Schedule::interleaved) {
    std::vector<std::vector<const StageTransfer*>> into(stages);
    for (const StageTransfer& transfer : pipeline.transfers) {
      into[static_cast<size_t>(transfer.to)].push_back(&transfer);
    }
    for (size_t stage = 0; stage < stages; ++stage) {
      for (const StageTransfer* transfer : into[stage]) {
        const auto from = static_cast<size_t>(transfer->from);
        way[stage] =
            std::max(way[stage], way[from] + pipeline.forward_ns[from] + transfer->forward_ns);
        if (!transfer->has_backward) continue;
        back[stage] =
            std::max(back[stage], back[from] + pipeline.backward_ns[from] + transfer->backward_ns);
      }
    }
  }
  double bound = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    double& sum = work[stage % work.size()];
    sum += m * (pipeline.forward_ns[stage] + pipeline.backward_ns[stage]);
    bound = std::max(bound, way[stage] + sum + back[stage]);
  }
  return bound;
}

}  // namespace rannc::partition
