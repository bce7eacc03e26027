#include "runtime/call/recorder.h"

#include <c10/core/impl/VirtualGuardImpl.h>

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

/// What the rank does by itself.
bool is_ours(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward ||
         kind == ActionKind::release || kind == ActionKind::return_outputs;
}

}  // namespace

void History::settle(bool wait) {
  if (marks.empty()) return;
  if (wait) marks.back().moment->wait();
  const auto past = [](const Mark& mark) { return mark.moment->is_past(); };
  const auto end = static_cast<size_t>(std::ranges::find_if_not(marks, past) - marks.begin());
  if (end == 0) return;
  const auto ns_between = [](const Mark& from, const Mark& to) {
    return from.moment->ns_until(*to.moment);
  };
  size_t first = 0;  // of the call at hand: its place in the host's time is known
  for (size_t at = 0; at < end; ++at) {
    const Mark& mark = marks[at];
    if (mark.call != marks[first].call) first = at;
    if (mark.begins || at == 0) continue;
    const int64_t passed = ns_between(marks[at - 1], mark);
    const bool computes = is_ours(mark.kind);
    // The device waits for what it is sent, or copies it.
    (computes ? times.compute_ns : times.idle_ns) += passed;
    if (last_call != mark.call) continue;
    const int64_t ended_ns = marks[first].host_ns + ns_between(marks[first], mark);
    last.push_back({mark.index, ended_ns - passed, ended_ns, computes ? passed : 0});
  }
  // The last of them remains where others follow, whose time begins with it.
  const auto kept = end < marks.size() ? end - 1 : end;
  marks.erase(marks.begin(), marks.begin() + static_cast<std::ptrdiff_t>(kept));
}

Recorder::Recorder(std::shared_ptr<History> history, int64_t call, size_t actions,
                   c10::Device device)
    : history_(std::move(history)), call_(call), device_(device) {
  if (!history_) return;
  history_->settle(/*wait=*/false);
  history_->last.clear();
  history_->last.reserve(actions + 2);  // a phase's end is one, too
  history_->last_call = call_;
}

void Recorder::start() {
  if (!history_) return;
  if (!device_.is_cpu()) return mark(/*begins=*/true, /*index=*/-1, ActionKind::send);
  begin_ns_ = now_ns(CLOCK_MONOTONIC);
  begin_cpu_ns_ = now_ns(CLOCK_THREAD_CPUTIME_ID);
}

void Recorder::end(int index, ActionKind kind) {
  if (!history_) return;
  if (!device_.is_cpu()) return mark(/*begins=*/false, index, kind);
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

void Recorder::mark(bool begins, int index, ActionKind kind) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  history_->marks.push_back(
      {std::make_shared<ops::Moment>(stream), call_, now_ns(CLOCK_MONOTONIC), begins, index, kind});
}

}  // namespace rannc::runtime
