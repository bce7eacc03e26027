#include "runtime/call/recorder.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace rannc::runtime {
namespace {

using plan::ActionKind;

int64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Recorder::Recorder(std::shared_ptr<History> history, int64_t call, size_t actions)
    : history_(std::move(history)), call_(call) {
  if (!history_) return;
  history_->last.clear();
  history_->last.reserve(actions + 2);  // a phase's end is one, too
  history_->last_call = call_;
}

void Recorder::start() {
  if (!history_) return;
  begin_ns_ = now_ns(CLOCK_MONOTONIC);
  begin_cpu_ns_ = now_ns(CLOCK_THREAD_CPUTIME_ID);
}

void Recorder::end(int index, ActionKind kind) {
  if (!history_) return;
  const int64_t end_ns = now_ns(CLOCK_MONOTONIC);
  const int64_t end_cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
  const int64_t passed = end_ns - begin_ns_;
  // The two clocks are read one after the other, so the difference may be less than nothing.
  const int64_t cpu = std::clamp<int64_t>(end_cpu_ns - begin_cpu_ns_, 0, passed);
  Times& times = history_->times;
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::release:
    case ActionKind::return_outputs:
      times.compute_ns += passed;
      break;
    case ActionKind::send:
      times.send_ns += cpu;
      times.idle_ns += passed - cpu;
      break;
    case ActionKind::receive:
      times.receive_ns += cpu;
      times.idle_ns += passed - cpu;
      break;
    case ActionKind::sync_buffers:
    case ActionKind::reduce_outputs:
    case ActionKind::reduce_gradients:
      times.reduce_ns += cpu;
      times.idle_ns += passed - cpu;
      break;
  }
  // A later call has begun before this one's backward: `last` is about that one.
  if (history_->last_call == call_) history_->last.push_back({index, begin_ns_, end_ns, cpu});
  begin_ns_ = end_ns;
  begin_cpu_ns_ = end_cpu_ns;
}

}  // namespace rannc::runtime
