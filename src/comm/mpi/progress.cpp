#include "comm/mpi/progress.h"

#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/mpi/check.h"
#include "comm/mpi/control.h"
#include "comm/mpi/pulls.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::comm {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int64_t kPieceBytes = int64_t{1} << 30;  // MPI-3 counts are int
constexpr int64_t kFirstCollectiveTag = int64_t{1} << 30;

/// How often the thread looks. A look takes up to 40 us of a computing thread on the same core of a
/// virtual machine: the timer, two switches, cold caches.
/// tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn` (kRelaxed); for the others no
/// measurement is known.
/// without it: with looks every 200 us, a pipeline of convolutions on two such cores took a fifth
/// longer than with one every 20 ms, and the GPT on four ranks 12 %.
constexpr auto kShort = 50us;       // somebody has been blocked for 400 us or less; then an eighth
constexpr auto kLong = 500us;       // of that time, up to this
constexpr auto kAttentive = 200us;  // somebody might be blocked at the other end
constexpr auto kRelaxed = 20ms;     // the messages move by themselves, as soon as they are needed
constexpr int kBurst = 20;          // polls without sleep when somebody comes to wait
constexpr auto kIdle = 100ms;       // nothing under way: only questions of other ranks can come

/// How long a rank that gives up waits for its receives to be cancelled, and for the answer of a
/// rank that it asks what that is doing.
/// tuned by: no measurement is known.
/// without it: a rank that hangs keeps the one that reports it from ending; with less time, a busy
/// rank is reported as one that does not answer.
constexpr auto kAnswerTime = 2s;

constexpr double kLongest = 1e9;  // seconds: a clock in ns cannot count many more

std::chrono::duration<double> time_of(double timeout_s) {
  return std::chrono::duration<double>(std::min(timeout_s, kLongest));
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

}  // namespace

struct Progress::Impl : std::enable_shared_from_this<Progress::Impl> {
  class Transfer;

  /// One MPI request, with what it is for. Touched by the thread only.
  struct Flight {
    enum class Kind { piece, question_receive, control_send, leaving };
    Kind kind = Kind::piece;
    std::shared_ptr<Transfer> transfer = {};       ///< piece
    int bytes = 0;                                 ///< piece: what a receive expects
    std::unique_ptr<ControlMessage> message = {};  ///< the control kinds: the memory
  };

  Impl();

  // Any thread.
  void post(const std::shared_ptr<Transfer>& transfer);
  [[nodiscard]] bool done(const Transfer& transfer);
  void wait(Transfer& transfer);
  void leave(double timeout_s);
  void stop();
  [[nodiscard]] PeerState ask(int peer);

  // The thread.
  void run();
  void run_until_stopped();
  void start_new(std::unique_lock<std::mutex>& lock);
  void start(const std::shared_ptr<Transfer>& transfer);
  void fly(MPI_Request request, Flight flight);
  void receive_control();
  void send_control(int to, const ControlMessage& message);
  [[nodiscard]] bool poll();
  void land(Flight flight, const MPI_Status& status);
  void handle(const ControlMessage& message, int from);
  void sleep(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool others_need_me() const;
  void cancel_receives();

  // With the mutex.
  [[nodiscard]] PeerState own_state() const;
  void fail(const std::string& reason);
  void wake();

  MPI_Comm messages = MPI_COMM_NULL;
  MPI_Comm collectives = MPI_COMM_NULL;  // of its own, so that tags of 2^30 - 1 are enough
  MPI_Comm control = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<bool> pulling;  // by rank

  // The thread's own.
  std::vector<MPI_Request> requests;
  std::vector<Flight> flights;  // parallel to requests
  std::vector<int> landed;
  std::vector<MPI_Status> statuses;
  int burst = 0;
  Clock::time_point last_event;

  std::mutex mutex;                   // guards everything below
  std::condition_variable woken;      // the thread sleeps on it
  std::condition_variable something;  // callers sleep on it: done, failed, answered, left
  bool has_news = false;              // for the thread
  std::vector<std::shared_ptr<Transfer>> posted;
  std::vector<std::pair<int, ControlMessage>> to_tell;
  std::map<int32_t, PeerState> answers;
  int32_t questions = 0;
  std::list<Waiting> waits;  // one per blocked thread, the longest first
  std::optional<Waiting> gave_up;
  std::optional<std::string> failure;
  bool receives_cancelled = false;
  bool leaving = false;
  bool all_left = false;
  bool stopping = false;

  std::mutex joining;  // held by stop(); the thread may be joined from two places
  std::thread thread;
};

class Progress::Impl::Transfer : public Operation {
 public:
  Transfer(std::shared_ptr<Impl> progress, bool sends, void* data, int64_t bytes, int peer,
           int64_t tag, Purpose purpose, double timeout_s, Communicator::Then then)
      : sends(sends),
        data(static_cast<char*>(data)),
        bytes(bytes),
        peer(peer),
        tag(tag),
        purpose(purpose),
        timeout_s(timeout_s),
        then(std::move(then)),
        progress_(std::move(progress)) {}

  bool done() override { return progress_->done(*this); }
  void wait() override { progress_->wait(*this); }

  const bool sends;
  char* const data;
  const int64_t bytes;
  const int peer;
  const int64_t tag;
  const Purpose purpose;
  const double timeout_s;
  Communicator::Then then;  // the thread's own, as the next
  int pieces_left = 0;
  bool cancelled = false;
  bool finished = false;  // guarded by the mutex of progress

 private:
  const std::shared_ptr<Impl> progress_;
};

Progress::Impl::Impl()
    : messages(duplicate_world()), collectives(duplicate_world()), control(duplicate_world()) {
  check_mpi(MPI_Comm_rank(messages, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(messages, &size), "MPI_Comm_size");
  pulling = pulling_peers();
  log::debug("comm", pulling[static_cast<size_t>(rank)]
                         ? "messages within this host do not need the sender"
                         : "messages within this host need the sender");
}

// ---- any thread

void Progress::Impl::post(const std::shared_ptr<Transfer>& transfer) {
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
    const auto entry = waits.insert(waits.end(), {transfer.sends, transfer.peer, purpose.what,
                                                  purpose.stage, purpose.micro_batch});
    wake();
    something.wait_for(lock, time_of(transfer.timeout_s), is_over);
    if (!is_over()) {
      // Without the lock: the thread is needed for the questions. The message may still come.
      lock.unlock();
      const std::string message =
          explain_timeout(rank, transfer.timeout_s, *entry, [&](int peer) { return ask(peer); });
      lock.lock();
      if (!is_over()) {
        gave_up = *entry;
        fail(message);
      }
    }
    waits.erase(entry);
  }
  // This process is ending, and a thread that came back to Python now would bring it down.
  while (leaving) something.wait(lock);
  if (transfer.finished) return;
  // The caller is about to free memory that receives under way would write to.
  something.wait_for(lock, kAnswerTime, [&] { return receives_cancelled; });
  throw CommError(*failure);
}

PeerState Progress::Impl::ask(int peer) {
  std::unique_lock lock(mutex);
  const int32_t serial = ++questions;
  to_tell.emplace_back(peer,
                       ControlMessage{.kind = ControlMessage::Kind::question, .serial = serial});
  wake();
  something.wait_for(lock, kAnswerTime, [&] { return answers.contains(serial) || stopping; });
  const auto found = answers.extract(serial);
  return found.empty() ? PeerState{} : found.mapped();
}

void Progress::Impl::leave(double timeout_s) {
  std::unique_lock lock(mutex);
  leaving = true;
  wake();
  const auto is_over = [&] { return all_left || failure || stopping; };
  while (!something.wait_for(lock, time_of(timeout_s), is_over)) {
    lock.unlock();
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank && ask(peer).kind == PeerState::Kind::silent) {
        throw CommError(fmt::format(
            "rank {} has ended its script and waits for the others; rank {} does not answer: it is "
            "stopped or dead",
            rank, peer));
      }
    }
    lock.lock();
  }
  if (failure) throw CommError(*failure);
  failure = fmt::format("rank {} has left the job: its communication has ended", rank);
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
}

PeerState Progress::Impl::own_state() const {
  if (leaving) return {PeerState::Kind::left, {}};
  // Others may ask between this rank's giving up and the end of the job.
  if (gave_up) return {PeerState::Kind::waiting, *gave_up};
  if (waits.empty()) return {PeerState::Kind::busy, {}};
  return {PeerState::Kind::waiting, waits.front()};
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
  receive_control();
  std::unique_lock lock(mutex);
  while (!stopping) {
    start_new(lock);
    lock.unlock();
    const bool some = poll();
    lock.lock();
    if (some) {
      burst = kBurst;
      last_event = Clock::now();
    }
    sleep(lock);
  }
  lock.unlock();
  cancel_receives();
}

void Progress::Impl::start_new(std::unique_lock<std::mutex>& lock) {
  if (!has_news) return;
  has_news = false;
  burst = kBurst;
  last_event = Clock::now();
  const auto transfers = std::exchange(posted, {});
  const auto told = std::exchange(to_tell, {});
  const bool leave_now = leaving && !failure;
  const bool cancel = failure && !receives_cancelled;
  lock.unlock();
  for (const auto& transfer : transfers) start(transfer);
  for (const auto& [to, message] : told) send_control(to, message);
  if (leave_now && std::ranges::none_of(flights, [](const Flight& flight) {
        return flight.kind == Flight::Kind::leaving;
      })) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibarrier(control, &request), "MPI_Ibarrier");
    fly(request, {.kind = Flight::Kind::leaving});
  }
  if (cancel) cancel_receives();
  lock.lock();
  if (cancel) {
    receives_cancelled = true;
    something.notify_all();
  }
}

void Progress::Impl::start(const std::shared_ptr<Transfer>& transfer) {
  const bool collective = transfer->tag >= kFirstCollectiveTag;
  MPI_Comm comm = collective ? collectives : messages;
  const int tag =
      static_cast<int>(collective ? transfer->tag - kFirstCollectiveTag : transfer->tag);
  transfer->pieces_left =
      static_cast<int>(std::max<int64_t>(1, (transfer->bytes + kPieceBytes - 1) / kPieceBytes));
  // Pieces have equal tags, so they arrive in this order.
  for (int64_t begin = 0; begin == 0 || begin < transfer->bytes; begin += kPieceBytes) {
    const int bytes = static_cast<int>(std::min(kPieceBytes, transfer->bytes - begin));
    char* const data = transfer->data + begin;
    MPI_Request request = MPI_REQUEST_NULL;
    if (transfer->sends) {
      check_mpi(MPI_Isend(data, bytes, MPI_BYTE, transfer->peer, tag, comm, &request), "MPI_Isend");
    } else {
      check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, transfer->peer, tag, comm, &request), "MPI_Irecv");
    }
    fly(request, {.kind = Flight::Kind::piece, .transfer = transfer, .bytes = bytes});
  }
}

void Progress::Impl::fly(MPI_Request request, Flight flight) {
  requests.push_back(request);
  flights.push_back(std::move(flight));
}

void Progress::Impl::receive_control() {
  auto message = std::make_unique<ControlMessage>();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(message.get(), sizeof(ControlMessage), MPI_BYTE, MPI_ANY_SOURCE, 0, control,
                      &request),
            "MPI_Irecv");
  fly(request, {.kind = Flight::Kind::question_receive, .message = std::move(message)});
}

void Progress::Impl::send_control(int to, const ControlMessage& message) {
  auto copy = std::make_unique<ControlMessage>(message);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(copy.get(), sizeof(ControlMessage), MPI_BYTE, to, 0, control, &request),
            "MPI_Isend");
  fly(request, {.kind = Flight::Kind::control_send, .message = std::move(copy)});
}

bool Progress::Impl::poll() {
  int count = 0;
  landed.resize(requests.size());
  statuses.resize(requests.size());
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                landed.data(), statuses.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  if (count == 0 || count == MPI_UNDEFINED) return false;

  std::vector<std::pair<Flight, MPI_Status>> done;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(landed[static_cast<size_t>(i)]);
    MPI_Status status = statuses[static_cast<size_t>(i)];
    if (code != MPI_ERR_IN_STATUS) status.MPI_ERROR = MPI_SUCCESS;  // not set then
    done.emplace_back(std::move(flights[at]), status);
  }
  // MPI_Testsome has set exactly these requests to null.
  size_t kept = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    requests[kept] = requests[i];
    if (kept != i) flights[kept] = std::move(flights[i]);
    ++kept;
  }
  requests.resize(kept);
  flights.resize(kept);

  for (auto& [flight, status] : done) land(std::move(flight), status);
  return true;
}

void Progress::Impl::land(Flight flight, const MPI_Status& status) {
  switch (flight.kind) {
    case Flight::Kind::control_send:
      return;  // a rank that is gone need not be told
    case Flight::Kind::leaving: {
      check_mpi(status.MPI_ERROR, "MPI_Ibarrier");
      const std::scoped_lock lock(mutex);
      all_left = true;
      something.notify_all();
      return;
    }
    case Flight::Kind::question_receive:
      check_mpi(status.MPI_ERROR, "MPI_Irecv");
      receive_control();
      return handle(*flight.message, status.MPI_SOURCE);
    case Flight::Kind::piece:
      break;
  }
  Transfer& transfer = *flight.transfer;
  --transfer.pieces_left;
  std::string error;
  int bytes = flight.bytes;
  if (status.MPI_ERROR == MPI_ERR_TRUNCATE) {
    error = fmt::format("rank {} got more than the {} bytes that it expected from rank {}", rank,
                        transfer.bytes, transfer.peer);
  } else if (status.MPI_ERROR != MPI_SUCCESS) {
    error = fmt::format("the message {} rank {} failed with MPI error {}",
                        transfer.sends ? "to" : "from", transfer.peer, status.MPI_ERROR);
  } else if (!transfer.sends) {
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != flight.bytes) {
      error = fmt::format("rank {} got {} bytes instead of the {} that it expected from rank {}",
                          rank, bytes, transfer.bytes, transfer.peer);
    }
  }
  // Outlives the lock. Whoever waits for what comes next has given up when the job has failed, and
  // taken the memory back.
  const Communicator::Then then =
      transfer.pieces_left == 0 ? std::exchange(transfer.then, {}) : Communicator::Then();
  {
    const std::scoped_lock lock(mutex);
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

void Progress::Impl::handle(const ControlMessage& message, int from) {
  std::unique_lock lock(mutex);
  if (message.kind == ControlMessage::Kind::answer) {
    answers[message.serial] = state_in(message);
    something.notify_all();
    return;
  }
  const ControlMessage reply = answer(message.serial, own_state());
  lock.unlock();
  send_control(from, reply);
}

void Progress::Impl::sleep(std::unique_lock<std::mutex>& lock) {
  const auto news = [this] { return has_news || stopping; };
  if (flights.size() == 1) {  // only the receive for questions
    woken.wait_for(lock, kIdle, news);
  } else if (waits.empty()) {
    woken.wait_for(lock, others_need_me() ? kAttentive : kRelaxed, news);
  } else if (burst > 0) {
    --burst;
  } else {
    const Clock::duration blocked = Clock::now() - last_event;
    const auto nap = std::clamp<Clock::duration>(blocked / 8, kShort, kLong);
    woken.wait_for(lock, nap, news);
  }
}

bool Progress::Impl::others_need_me() const {
  return std::ranges::any_of(flights, [this](const Flight& flight) {
    if (flight.kind != Flight::Kind::piece) return flight.kind == Flight::Kind::leaving;
    // What comes next, as in a ring, waits for this message.
    return flight.transfer->then != nullptr || !pulling[static_cast<size_t>(flight.transfer->peer)];
  });
}

void Progress::Impl::cancel_receives() {
  for (size_t i = 0; i < requests.size(); ++i) {
    const Flight& flight = flights[i];
    if (flight.kind == Flight::Kind::piece && !flight.transfer->sends) {
      flight.transfer->cancelled = true;
      check_mpi(MPI_Cancel(&requests[i]), "MPI_Cancel");
    }
  }
}

// ---- Progress

Progress::Progress() : impl_(std::make_shared<Impl>()) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Progress::~Progress() { impl_->stop(); }

int Progress::rank() const { return impl_->rank; }
int Progress::size() const { return impl_->size; }

Handle Progress::post(bool sends, void* data, int64_t bytes, int peer, int64_t tag, Purpose purpose,
                      double timeout_s, Communicator::Then then) {
  RANNC_CHECK(peer >= 0 && peer < size() && tag >= 0 && bytes >= 0 && tag < 2 * kFirstCollectiveTag,
              fmt::format("a message of {} bytes with tag {} between the ranks {} and {} of {}",
                          bytes, tag, rank(), peer, size()));
  auto transfer = std::make_shared<Impl::Transfer>(impl_, sends, data, bytes, peer, tag, purpose,
                                                   timeout_s, std::move(then));
  impl_->post(transfer);
  return transfer;
}

void Progress::leave(double timeout_s) { impl_->leave(timeout_s); }
void Progress::stop() { impl_->stop(); }

}  // namespace rannc::comm
