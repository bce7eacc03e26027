#include "rannc/comm/mpi.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/mpi/flights.h"
#include "comm/mpi/library.h"
#include "comm/progress/progress_communicator.h"
#include "rannc/comm/hosts.h"
#include "rannc/util/error.h"

namespace rannc::comm {

namespace {

/// MPI is one per process, and so is this. `mutex` guards all but `aborted`.
struct Process {
  std::mutex mutex;
  std::vector<std::shared_ptr<Progress>> progress;  ///< one per make_mpi
  double timeout_s = 600;                           ///< of the last make_mpi
  bool owner = false;                               ///< we started MPI
  pid_t owner_process = 0;                          ///< a child that it forks is no rank
  bool finished = false;
  std::atomic<bool> aborted = false;
};

Process& process() {
  // Never destroyed: the exit handler below may run after static destructors.
  static auto* const instance = new Process;
  return *instance;
}

/// Ends the process when MPI's start-up takes too long. MPI_Abort is not allowed before MPI_Init
/// has returned, and no call gives up by itself.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : thread_([this, seconds] { watch(seconds); }) {}
  ~Watchdog() {
    {
      const std::scoped_lock lock(mutex_);
      started_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(double seconds) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return started_; })) {
      return;
    }
    std::fprintf(
        stderr,
        "rannc: MPI start-up not finished after %.3g s: a rank never reached it. Every rank "
        "of the job has to use RaNNC.\n",
        seconds);
    _exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;  // guarded by mutex_
  std::thread thread_;
};

[[noreturn]] void abort_job(const std::string& reason) {
  process().aborted = true;
  std::fprintf(stderr, "rannc: %s\n", reason.c_str());
  std::fflush(stderr);
  mpi().abort(mpi().world, 1);
  _exit(1);  // MPI_Abort does not come back, but is not declared so
}

/// Runs in exit(), after Python has ended. Only here is the exit code known: a rank that ends with
/// an error must not wait for the others in MPI_Finalize, nor end as if all were well.
void at_exit(int code, void*) {
  if (process().aborted || getpid() != process().owner_process) return;
  if (code == 0) return finish_mpi();
  const std::scoped_lock lock(process().mutex);
  leave_with_code(process().progress, code);
}

bool is_initialized() {
  int flag = 0;
  check_mpi(mpi().initialized(&flag), "MPI_Initialized");
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  check_mpi(mpi().finalized(&flag), "MPI_Finalized");
  return flag != 0;
}

void start_mpi() {
  int provided = MPI_THREAD_SINGLE;
  if (is_initialized()) {
    check_mpi(mpi().query_thread(&provided), "MPI_Query_thread");
  } else {
    check_mpi(mpi().init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
              "MPI_Init_thread");
    process().owner = true;
    process().owner_process = getpid();
    check_mpi(mpi().comm_set_errhandler(mpi().world, mpi().errors_return),
              "MPI_Comm_set_errhandler");
    on_exit(at_exit, nullptr);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw CommError(fmt::format(
        "MPI was started with thread level {}, but RaNNC needs MPI_THREAD_MULTIPLE ({}).\n"
        "  Create the RaNNCModule before the other library starts MPI, or start it at that level.",
        provided, MPI_THREAD_MULTIPLE));
  }
  int* largest_tag = nullptr;
  int known = 0;
  check_mpi(mpi().comm_get_attr(mpi().world, MPI_TAG_UB, &largest_tag, &known),
            "MPI_Comm_get_attr");
  constexpr int kNeeded = (1 << 30) - 1;
  if (known == 0 || *largest_tag < kNeeded) {
    throw CommError(fmt::format("this MPI allows tags up to {}, but RaNNC needs {}; use Open MPI",
                                known == 0 ? 0 : *largest_tag, kNeeded));
  }
}

/// The name of this rank's host, which no other one has. Collective.
std::string host_name() {
  using Text = std::array<char, 256>;  // ends with zeros
  const auto text_of = [](const std::string& value) {
    Text text{};
    value.copy(text.data(), text.size() - 1);
    return text;
  };
  const Host own = own_host();
  const std::array<Text, 2> mine{text_of(own.name), text_of(own.identity)};
  int rank = 0;
  int size = 1;
  check_mpi(mpi().comm_rank(mpi().world, &rank), "MPI_Comm_rank");
  check_mpi(mpi().comm_size(mpi().world, &size), "MPI_Comm_size");
  std::vector<std::array<Text, 2>> all(static_cast<size_t>(size));
  check_mpi(mpi().allgather(mine.data(), sizeof(mine), mpi().byte, all.data(), sizeof(mine),
                            mpi().byte, mpi().world),
            "MPI_Allgather");
  std::vector<Host> hosts;
  for (const auto& [name, identity] : all) hosts.push_back({name.data(), identity.data()});
  return distinct_names(hosts)[static_cast<size_t>(rank)];
}

class MpiCommunicator final : public ProgressCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<Progress> progress, const std::string& host, double timeout_s)
      : ProgressCommunicator(std::move(progress), host, timeout_s) {}

  void set_timeout_s(double seconds) override {
    ProgressCommunicator::set_timeout_s(seconds);
    const std::scoped_lock lock(process().mutex);
    process().timeout_s = seconds;
  }

  void abort(const std::string& reason) override {
    abort_job(fmt::format("rank {} ends the job: {}", rank(), reason));
  }
};

}  // namespace

bool mpi_available() {
  try {
    static_cast<void>(mpi());
  } catch (const CommError&) {
    return false;
  }
  return true;
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(mpi().get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string whole = text.data();
  return fmt::format("{} ({})", whole.substr(0, whole.find(", package:")), mpi().file);
}

std::unique_ptr<Communicator> make_mpi(double timeout_s, double start_timeout_s) {
  const std::scoped_lock lock(process().mutex);
  if (process().finished || is_finalized()) {
    throw CommError("MPI has been finalized in this process and cannot be started again");
  }
  const Watchdog watchdog(start_timeout_s);
  start_mpi();
  const std::string host = host_name();
  process().progress.push_back(std::make_shared<Progress>(make_mpi_flights()));
  process().timeout_s = timeout_s;
  return std::make_unique<MpiCommunicator>(process().progress.back(), host, timeout_s);
}

bool started_mpi() {
  const std::scoped_lock lock(process().mutex);
  return process().owner;
}

void finish_mpi() {
  const std::scoped_lock lock(process().mutex);
  if (process().progress.empty() || process().finished || process().aborted) return;
  process().finished = true;
  if (is_finalized()) {
    for (const auto& progress : process().progress) progress->stop();
    return;
  }
  try {
    for (const auto& progress : process().progress) progress->leave(process().timeout_s);
    if (process().owner) check_mpi(mpi().finalize(), "MPI_Finalize");
  } catch (const CommError& error) {
    abort_job(error.what());
  }
}

}  // namespace rannc::comm
