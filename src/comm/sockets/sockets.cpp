#include "rannc/comm/sockets.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "comm/progress/progress_communicator.h"
#include "comm/sockets/connect.h"
#include "comm/sockets/flights.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

/// The jobs of this process. `mutex` guards all but `aborted`.
struct Process {
  std::mutex mutex;
  std::vector<std::shared_ptr<Progress>> progress;  ///< of communicators that are in use
  double timeout_s = 600;                           ///< of the last one
  pid_t owner = 0;                                  ///< a child that it forks is no rank
  std::atomic<bool> aborted = false;
};

Process& process() {
  // Never destroyed: the exit handler below may run after static destructors.
  static auto* const instance = new Process;
  return *instance;
}

[[noreturn]] void end_process(const std::string& reason) {
  process().aborted = true;
  std::fprintf(stderr, "rannc: %s\n", reason.c_str());
  std::fflush(stderr);
  _exit(1);  // the connections close, which the other ranks see
}

/// Runs in exit(), after Python has ended: see at_exit in mpi.cpp.
void at_exit(int code, void*) {
  if (process().aborted || getpid() != process().owner) return;
  if (code == 0) return finish_sockets();
  const std::scoped_lock lock(process().mutex);
  leave_with_code(process().progress, code);
}

class SocketCommunicator final : public ProgressCommunicator {
 public:
  SocketCommunicator(std::shared_ptr<Progress> progress, const std::string& host, double timeout_s)
      : ProgressCommunicator(std::move(progress), host, timeout_s) {}

  void set_timeout_s(double seconds) override {
    ProgressCommunicator::set_timeout_s(seconds);
    const std::scoped_lock lock(process().mutex);
    process().timeout_s = seconds;
  }

  void abort(const std::string& reason) override {
    end_process(fmt::format("rank {} ends the job: {}", rank(), reason));
  }
};

}  // namespace

std::unique_ptr<Communicator> make_sockets(Listener& listener, int rank,
                                           const std::vector<std::string>& addresses,
                                           const std::vector<std::string>& hosts,
                                           const std::string& secret, double timeout_s,
                                           double start_timeout_s) {
  auto flights = make_socket_flights(
      rank, connect_all(listener, rank, addresses, secret, start_timeout_s), hosts);
  const std::scoped_lock lock(process().mutex);
  if (process().owner != getpid()) {
    process().owner = getpid();
    process().progress.clear();
    on_exit(at_exit, nullptr);
  }
  process().progress.push_back(std::make_shared<Progress>(std::move(flights)));
  process().timeout_s = timeout_s;
  return std::make_unique<SocketCommunicator>(process().progress.back(),
                                              hosts[static_cast<size_t>(rank)], timeout_s);
}

void finish_sockets() {
  const std::scoped_lock lock(process().mutex);
  if (process().aborted) return;
  std::vector<std::jthread> leaving;  // together, as several may be ranks of one job
  for (const auto& progress : process().progress) {
    leaving.emplace_back([&] {
      try {
        progress->leave(process().timeout_s);
      } catch (const CommError& error) {
        end_process(error.what());
      }
    });
  }
  leaving.clear();
  process().progress.clear();
}

}  // namespace rannc::comm
