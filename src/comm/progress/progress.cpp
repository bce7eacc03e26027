#include "comm/progress/progress.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/progress/cadence.h"
#include "comm/progress/flights.h"
#include "comm/progress/questions.h"
#include "comm/progress/transfer.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

using namespace std::chrono_literals;

/// How long a rank that gives up waits for its receives to be cancelled, and for the answer of a
/// rank that it asks what that is doing.
/// tuned by: a deadline, part of the 10 s within which a rank that waits in vain gives up.
/// without it: a rank that hangs keeps the one that reports it from ending; with less time, a busy
/// rank is reported as one that does not answer.
constexpr auto kAnswerTime = 2s;

/// How long a rank waits until it asks whether it does so in vain, and asks again. The second time
/// in a row it gives up, if none of the ranks that wait for each other has got, or sent, a part of
/// a message between. tuned by: a deadline: three times this is less than the 10 s that are
/// promised. without it: where a rank makes a step alone it waits as long as for one that computes.
constexpr double kDoubtTimeS = 3;

constexpr double kLongest = 1e9;  // seconds: a clock in ns cannot count many more

std::chrono::duration<double> time_of(double timeout_s) {
  return std::chrono::duration<double>(std::min(timeout_s, kLongest));
}

}  // namespace

struct Progress::Impl final : Flights::Listener {
  class Posted;

  // Any thread.
  void post(const std::shared_ptr<Posted>& transfer);
  [[nodiscard]] bool done(const Transfer& transfer);
  void wait(Transfer& transfer);
  [[nodiscard]] double wait_while_there_is_hope(std::unique_lock<std::mutex>& lock,
                                                const Transfer& transfer, const Waiting& waiting);
  void leave(double timeout_s);
  void stop();
  [[nodiscard]] PeerState ask(int peer);

  // The thread.
  void run();
  void run_until_stopped();
  void start_new(std::unique_lock<std::mutex>& lock);
  void piece_landed(Transfer& transfer, const std::string& error) override;
  void message_moves() override;
  void control_landed(const ControlMessage& message, int from) override;
  void all_have_left() override;
  void lost(const std::string& reason) override;
  void sleep(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Cadence::Load load() const;

  // With the mutex.
  void fail(const std::string& reason);
  void wake();

  explicit Impl(std::unique_ptr<Flights> transport) : flights(std::move(transport)) {}

  const std::unique_ptr<Flights> flights;  // the thread's own, apart from what its class names
  const pid_t process = getpid();          // a forked one has no such thread
  Cadence cadence;                         // the thread's own

  std::mutex mutex;                   // guards everything below, and Transfer::finished
  std::condition_variable woken;      // the thread sleeps on it
  std::condition_variable something;  // callers sleep on it: done, failed, answered, left
  bool has_news = false;              // for the thread
  std::vector<std::shared_ptr<Transfer>> posted;
  Questions questions;
  std::optional<std::string> failure;
  bool receives_cancelled = false;
  bool leaving = false;
  bool all_left = false;
  bool stopping = false;

  std::mutex joining;  // held by stop(); the thread may be joined from two places
  std::thread thread;
};

/// A transfer as its caller sees it.
class Progress::Impl::Posted final : public Operation, public Transfer {
 public:
  Posted(Transfer transfer, std::shared_ptr<Impl> progress)
      : Transfer(std::move(transfer)), progress_(std::move(progress)) {}

  bool done() override { return progress_->done(*this); }
  void wait() override { progress_->wait(*this); }

 private:
  const std::shared_ptr<Impl> progress_;
};

// ---- any thread

void Progress::Impl::post(const std::shared_ptr<Posted>& transfer) {
  if (getpid() != process) {
    throw CommError(fmt::format(
        "this process was forked from rank {}, and cannot take its place: a wrapped model, or what "
        "all ranks do together, is called in the rank's own process, and not in a worker of a "
        "DataLoader or of multiprocessing",
        flights->rank()));
  }
  const std::scoped_lock lock(mutex);
  if (failure) throw CommError(*failure);
  posted.push_back(transfer);
  wake();
}

bool Progress::Impl::done(const Transfer& transfer) {
  const std::scoped_lock lock(mutex);
  if (!transfer.finished && failure) throw CommError(*failure);
  return transfer.finished;
}

void Progress::Impl::wait(Transfer& transfer) {
  std::unique_lock lock(mutex);
  const auto is_over = [&] { return transfer.finished || failure; };
  if (!is_over()) {
    const Purpose& purpose = transfer.purpose;
    const Questions::Wait wait = questions.begin_wait(
        {transfer.sends, transfer.peer, purpose.what, purpose.stage, purpose.micro_batch});
    wake();
    const double waited_s = wait_while_there_is_hope(lock, transfer, *wait);
    if (!is_over()) {
      // Without the lock: the thread is needed for the questions. The message may still come.
      lock.unlock();
      const std::string message =
          explain_timeout(flights->rank(), waited_s, *wait, [&](int peer) { return ask(peer); });
      lock.lock();
      if (!is_over()) {
        questions.give_up(wait);
        fail(message);
      }
    }
    questions.end_wait(wait);
  }
  // This process is ending, and a thread that came back to Python now would bring it down.
  while (leaving) something.wait(lock);
  if (transfer.finished) return;
  // The caller is about to free memory that receives under way would write to.
  something.wait_for(lock, kAnswerTime, [&] { return receives_cancelled; });
  throw CommError(*failure);
}

/// Returns, after how many seconds, when `transfer` is over or need not be waited for any longer.
double Progress::Impl::wait_while_there_is_hope(std::unique_lock<std::mutex>& lock,
                                                const Transfer& transfer, const Waiting& waiting) {
  const auto is_over = [&] { return transfer.finished || failure; };
  const auto begin = std::chrono::steady_clock::now();
  double waited_s = 0;
  std::optional<Deadlock> before;
  while (waited_s < transfer.timeout_s) {
    const double slice_s = std::min(kDoubtTimeS, transfer.timeout_s - waited_s);
    if (something.wait_for(lock, time_of(slice_s), is_over)) break;
    lock.unlock();
    const std::optional<Deadlock> now =
        find_deadlock(flights->rank(), waiting, [&](int peer) { return ask(peer); });
    lock.lock();
    // Those that do not answer took their time, too.
    waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (now && now == before) break;
    before = now;
  }
  return std::min(std::round(waited_s), transfer.timeout_s);
}

PeerState Progress::Impl::ask(int peer) {
  std::unique_lock lock(mutex);
  if (peer == flights->rank()) return questions.own_state();
  const int32_t question = questions.ask(peer);
  wake();
  something.wait_for(lock, kAnswerTime,
                     [&] { return questions.is_answered(question) || stopping; });
  return questions.take_answer(question);
}

void Progress::Impl::leave(double timeout_s) {
  std::unique_lock lock(mutex);
  leaving = true;
  questions.leave();
  wake();
  const auto is_over = [&] { return all_left || failure || stopping; };
  while (!something.wait_for(lock, time_of(timeout_s), is_over)) {
    lock.unlock();
    for (int peer = 0; peer < flights->size(); ++peer) {
      if (peer != flights->rank() && ask(peer).kind == PeerState::Kind::silent) {
        throw CommError(fmt::format(
            "rank {} has ended its script and waits for the others; rank {} does not answer: it is "
            "stopped or dead",
            flights->rank(), peer));
      }
    }
    lock.lock();
  }
  if (failure) throw CommError(*failure);
  failure = fmt::format("rank {} has left the job: its communication has ended", flights->rank());
  lock.unlock();
  stop();
}

void Progress::Impl::stop() {
  const std::scoped_lock join_lock(joining);
  {
    const std::scoped_lock lock(mutex);
    stopping = true;
    wake();
    something.notify_all();
  }
  if (thread.joinable()) thread.join();
}

void Progress::Impl::fail(const std::string& reason) {
  if (!failure) failure = reason;
  something.notify_all();
  wake();
}

void Progress::Impl::wake() {
  has_news = true;
  woken.notify_one();
  flights->wake();
}

// ---- the thread

void Progress::Impl::run() {
  // Else the kernel rounds each sleep up by 50 us.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  std::optional<std::string> error;
  try {
    run_until_stopped();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  const std::scoped_lock lock(mutex);
  if (error) fail(*error);
  receives_cancelled = true;  // or MPI itself has failed, and nobody is left to do it
  something.notify_all();
}

void Progress::Impl::run_until_stopped() {
  flights->listen();
  std::unique_lock lock(mutex);
  while (!stopping) {
    start_new(lock);
    lock.unlock();
    const bool some = flights->poll(*this);
    lock.lock();
    if (some) cadence.event();
    sleep(lock);
  }
  lock.unlock();
  flights->cancel_receives();
}

void Progress::Impl::start_new(std::unique_lock<std::mutex>& lock) {
  if (!has_news) return;
  has_news = false;
  cadence.event();
  const auto transfers = std::exchange(posted, {});
  const auto told = questions.take_unsent();
  const bool leave_now = leaving && !failure;
  const bool cancel = failure && !receives_cancelled;
  lock.unlock();
  for (const auto& transfer : transfers) flights->start(transfer);
  for (const auto& [to, message] : told) flights->send_control(to, message);
  if (leave_now) flights->leave();
  if (cancel) flights->cancel_receives();
  lock.lock();
  if (cancel) {
    receives_cancelled = true;
    something.notify_all();
  }
}

void Progress::Impl::piece_landed(Transfer& transfer, const std::string& error) {
  // Outlives the lock. Whoever waits for what comes next has given up when the job has failed, and
  // taken the memory back.
  const Communicator::Then then =
      transfer.pieces_left == 0 ? std::exchange(transfer.then, {}) : Communicator::Then();
  {
    const std::scoped_lock lock(mutex);
    questions.count_arrival();
    if (transfer.cancelled) return;
    if (!error.empty()) {
      // For good: the two sides no longer agree on what belongs together.
      return fail(fmt::format("{} (tag {}, {})", error, transfer.tag, transfer.purpose.what));
    }
    if (transfer.pieces_left > 0 || (then && failure)) return;
    transfer.finished = true;
    something.notify_all();
  }
  if (then) then();
}

void Progress::Impl::message_moves() {
  const std::scoped_lock lock(mutex);
  questions.count_arrival();
}

void Progress::Impl::control_landed(const ControlMessage& message, int from) {
  std::unique_lock lock(mutex);
  const std::optional<ControlMessage> reply = questions.hear(message);
  if (!reply) something.notify_all();  // it is an answer
  lock.unlock();
  if (reply) flights->send_control(from, *reply);
}

void Progress::Impl::all_have_left() {
  const std::scoped_lock lock(mutex);
  all_left = true;
  something.notify_all();
}

void Progress::Impl::lost(const std::string& reason) {
  const std::scoped_lock lock(mutex);
  fail(reason);
}

void Progress::Impl::sleep(std::unique_lock<std::mutex>& lock) {
  if (flights->hears()) {
    if (has_news || stopping) return;
    lock.unlock();
    flights->sleep();
    lock.lock();
    return;
  }
  const Cadence::Clock::duration nap = cadence.nap(load());
  if (nap == nap.zero()) return;
  woken.wait_for(lock, nap, [this] { return has_news || stopping; });
}

Cadence::Load Progress::Impl::load() const {
  if (flights->idle()) return Cadence::Load::idle;
  if (questions.somebody_waits()) return Cadence::Load::blocked;
  return flights->needed_by_others() ? Cadence::Load::attentive : Cadence::Load::relaxed;
}

// ---- Progress

Progress::Progress(std::unique_ptr<Flights> flights)
    : impl_(std::make_shared<Impl>(std::move(flights))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Progress::~Progress() { impl_->stop(); }

int Progress::rank() const { return impl_->flights->rank(); }
int Progress::size() const { return impl_->flights->size(); }

Handle Progress::post(bool sends, void* data, int64_t bytes, int peer, int64_t tag, Purpose purpose,
                      double timeout_s, Communicator::Then then) {
  RANNC_CHECK(peer >= 0 && peer < size() && tag >= 0 && bytes >= 0 && tag < 2 * kFirstCollectiveTag,
              fmt::format("a message of {} bytes with tag {} between the ranks {} and {} of {}",
                          bytes, tag, rank(), peer, size()));
  auto transfer =
      std::make_shared<Impl::Posted>(Transfer{sends, static_cast<char*>(data), bytes, peer, tag,
                                              purpose, timeout_s, std::move(then)},
                                     impl_);
  impl_->post(transfer);
  return transfer;
}

void Progress::leave(double timeout_s) { impl_->leave(timeout_s); }
void Progress::stop() { impl_->stop(); }

}  // namespace rannc::comm
