#include "comm/nccl/watch.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::comm::nccl {
namespace {

using std::chrono::milliseconds;

/// How often the watch looks.
/// tuned by: no measurement is known. Each look asks one event of each stream, and each
/// communicator for its errors.
/// without it: with more, a job that cannot go on ends later; with less, a core is kept busy.
constexpr milliseconds kLook{50};

/// What a thread that is inside of NCCL is given to come back before its communicators end, and
/// what they are given to end. NCCL's abort may wait for threads that never come back.
/// tuned by: a deadline, part of the time within which a job that cannot go on ends.
/// without it: a rank whose abort hangs would not end its job.
constexpr milliseconds kAbort{1000};

/// What communicators are given to end where nothing is wrong. NCCL's abort waits for the ranks
/// that they connect to end them, too, and those look every half second.
/// tuned by: a deadline, the 10 s within which a rank that has left is reported.
/// without it: ranks that end at different times leave threads behind in NCCL.
constexpr milliseconds kEnd{10000};

/// What operations under way are given to end before their communicators are.
/// tuned by: a deadline, part of the 10 s within which a rank that waits in vain gives up.
/// without it: a rank that is ready first would take a message away that another one still waits
/// for; and one that leaves in the middle of a step would wait for all of comm_timeout_s.
constexpr milliseconds kLastOperations{5000};

}  // namespace

Watch::Watch(std::shared_ptr<const Library> library, int rank, std::function<double()> timeout_s,
             std::function<void()> use_device, std::function<void(const std::string&)> failed)
    : library_(std::move(library)),
      api_(library_->api),
      rank_(rank),
      timeout_s_(std::move(timeout_s)),
      use_device_(std::move(use_device)),
      failed_(std::move(failed)),
      thread_([this] { run(); }),
      guard_([this] { run_guard(); }) {}

Watch::~Watch() { stop(); }

void Watch::stop() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  guard_.join();
  abort_all(kEnd);
}

Result Watch::inside(const std::string& what, const std::function<Result()>& call) {
  const std::scoped_lock alone(calls_);
  check();
  {
    const std::scoped_lock lock(mutex_);
    if (stop_) {
      throw CommError(
          fmt::format("rank {} wants to {}, but NCCL's communicators have ended with the process",
                      rank_, what));
    }
    call_ = Call{Clock::now(), what};
  }
  const Result result = call();
  const std::scoped_lock lock(mutex_);
  call_.reset();
  return result;
}

void Watch::add(Comm comm) {
  const std::scoped_lock lock(mutex_);
  comms_.push_back(comm);
}

void Watch::add(int lane, std::shared_ptr<Event> end, std::string what) {
  const std::scoped_lock lock(mutex_);
  Lane& mine = lanes_[lane];
  if (mine.operations.empty()) mine.first_since = Clock::now();
  mine.operations.push_back({std::move(end), std::move(what)});
}

void Watch::keep(std::shared_ptr<Event> end, std::shared_ptr<void> owner) {
  const std::scoped_lock lock(mutex_);
  kept_.push_back({std::move(end), std::move(owner)});
}

void Watch::check() {
  const std::scoped_lock lock(mutex_);
  if (reason_) throw CommError(*reason_);
}

void Watch::fail(const std::string& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (reason_) return;
    reason_ = reason;
  }
  abort_all(kAbort);
  failed_(reason);
}

void Watch::end_all() {
  const auto deadline = Clock::now() + kLastOperations;
  std::unique_lock lock(mutex_);
  const auto under_way = [this] {
    return std::ranges::any_of(lanes_,
                               [](const auto& lane) { return !lane.second.operations.empty(); });
  };
  while (!reason_ && under_way() && Clock::now() < deadline) {
    lock.unlock();
    std::this_thread::sleep_for(kLook / 10);  // the watch's thread drops what has ended
    lock.lock();
  }
  lanes_.clear();
  const milliseconds patience = reason_ ? kAbort : kEnd;
  lock.unlock();
  abort_all(patience);
}

void Watch::abort_all(milliseconds patience) {
  std::vector<Comm> comms;
  {
    const std::scoped_lock lock(mutex_);
    comms.swap(comms_);
  }
  if (comms.empty()) return;
  std::unique_lock calls(calls_, kAbort);
  if (!calls) {
    log::warn("comm", fmt::format("a thread has been inside of NCCL for {} ms: its communicators "
                                  "are aborted all the same",
                                  kAbort.count()));
  }
  // By a thread that is left behind where an abort does not return. In one group all are told to
  // end before it waits for any: what one waits for may stand on its stream behind work of another.
  std::promise<void> ended;
  std::future<void> end = ended.get_future();
  std::thread([api = api_, use_device = use_device_, comms, ended = std::move(ended)]() mutable {
    use_device();
    api.group_start();
    for (Comm comm : comms) api.comm_abort(comm);  // nobody can use its result
    api.group_end();
    ended.set_value();
  }).detach();
  if (end.wait_for(patience) == std::future_status::ready) return;
  {
    // What hangs may still write to its memory, which is never freed on purpose.
    const std::scoped_lock lock(mutex_);
    (void)new std::vector<Kept>(std::exchange(kept_, {}));
  }
  log::warn("comm", fmt::format("ncclCommAbort has not returned after {} ms", patience.count()));
}

std::optional<std::string> Watch::look() {
  if (auto error = error_of_nccl()) return error;
  drop_first_operations();
  const auto now = Clock::now();
  const std::chrono::duration<double> timeout(timeout_s_());
  const std::scoped_lock lock(mutex_);
  if (reason_) return std::nullopt;
  if (call_ && now - call_->since > timeout) {
    return fmt::format("rank {} has been inside of NCCL for {:.3g} s, to {}: it does not return",
                       rank_, timeout.count(), call_->what);
  }
  for (const auto& [number, lane] : lanes_) {
    if (lane.operations.empty() || now - lane.first_since < timeout) continue;
    return fmt::format(
        "rank {} waited {:.3g} s {}: the device has not ended it, nor what it waits for.\n"
        "  If the step just takes long, raise comm_timeout_s (now {:.3g})",
        rank_, timeout.count(), lane.operations.front().what, timeout.count());
  }
  return std::nullopt;
}

/// Not while another thread is inside of NCCL, which finds errors itself, or does not return: to
/// ask a communicator also ends what it has been asked to do, and is nothing for two threads.
std::optional<std::string> Watch::error_of_nccl() {
  const std::unique_lock alone(calls_, std::try_to_lock);
  if (!alone) return std::nullopt;
  const std::scoped_lock lock(mutex_);
  if (reason_) return std::nullopt;
  for (Comm comm : comms_) {
    Result error = kSuccess;
    const Result asked = api_.comm_get_async_error(comm, &error);
    if (asked != kSuccess) error = asked;
    if (error == kSuccess || error == kInProgress) continue;
    const std::string first = first_under_way();
    return fmt::format("rank {}: NCCL reports: {}: {} ({})", rank_, api_.get_error_string(error),
                       api_.get_last_error(comm),
                       first.empty() ? "nothing is under way" : "waiting " + first);
  }
  return std::nullopt;
}

/// What waits first, of any lane; empty: nothing is under way. Requires the mutex.
std::string Watch::first_under_way() const {
  std::string what;
  for (const auto& [number, lane] : lanes_) {
    if (!lane.operations.empty()) what = lane.operations.front().what;
  }
  return what;
}

/// Those that have ended. The device is asked without the mutex, as it may not answer.
void Watch::drop_first_operations() {
  std::vector<int> numbers;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [number, lane] : lanes_) numbers.push_back(number);
  }
  for (const int number : numbers) {
    while (true) {
      std::shared_ptr<Event> end;
      {
        const std::scoped_lock lock(mutex_);
        const auto lane = lanes_.find(number);
        if (reason_ || lane == lanes_.end() || lane->second.operations.empty()) break;
        end = lane->second.operations.front().end;
      }
      if (!end->done()) break;
      const std::scoped_lock lock(mutex_);
      const auto lane = lanes_.find(number);
      if (lane == lanes_.end() || lane->second.operations.empty()) break;
      if (lane->second.operations.front().end != end) break;
      lane->second.operations.pop_front();
      lane->second.first_since = Clock::now();
    }
  }
}

/// Without the mutex: what is freed may ask for other locks, and the device may not answer.
void Watch::drop_ended() {
  std::vector<Kept> asked;
  {
    const std::scoped_lock lock(mutex_);
    if (reason_) return;
    asked.swap(kept_);
  }
  const auto ended =
      std::ranges::partition(asked, [](const Kept& each) { return !each.end->done(); });
  const std::scoped_lock lock(mutex_);
  if (reason_) {  // never freed, on purpose: an abort that hangs may still write to it
    (void)new std::vector<Kept>(std::move(asked));
    return;
  }
  for (auto each = asked.begin(); each != ended.begin(); ++each) kept_.push_back(std::move(*each));
}

void Watch::run() {
  pthread_setname_np(pthread_self(), "rannc-nccl");
  use_device_();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return stop_; })) {
    asks_since_ = Clock::now();
    lock.unlock();
    std::optional<std::string> wrong;
    try {
      wrong = look();
      drop_ended();
    } catch (const std::exception& error) {
      wrong = fmt::format("rank {}: the device has failed: {}", rank_, error.what());
    }
    lock.lock();
    asks_since_.reset();
    if (!wrong) continue;
    lock.unlock();
    fail(*wrong);
    lock.lock();
  }
}

/// A device that is blocked may block who asks it, until NCCL's communicators are aborted.
void Watch::run_guard() {
  pthread_setname_np(pthread_self(), "rannc-guard");
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return stop_; })) {
    const std::chrono::duration<double> timeout(timeout_s_());
    if (reason_ || !asks_since_ || Clock::now() - *asks_since_ < timeout) continue;
    const std::string first = first_under_way();
    const std::string wrong = fmt::format(
        "rank {} has asked its device for {:.3g} s what it has done, and it does not answer{}",
        rank_, timeout.count(), first.empty() ? "" : ", waiting " + first);
    lock.unlock();
    fail(wrong);
    lock.lock();
  }
}

}  // namespace rannc::comm::nccl
