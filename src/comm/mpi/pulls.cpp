#include "comm/mpi/pulls.h"

#include <array>
#include <chrono>
#include <thread>

#include "comm/mpi/library.h"

namespace rannc::comm {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// The test whether a receiver pulls messages by itself: its bytes, far beyond what MPI sends along
/// at once, and how long the sender stays away from MPI. The later times are for hosts where the
/// receiver does not get a processor at once.
/// tuned by: safety margins: MPI sends up to 64 KiB along at once by default, and processors are
/// shared out in slices of a few ms. All three together are what a start may take.
/// without it: a busy host is taken for one whose messages do not move by themselves, and its
/// threads look every 200 us: up to a fifth of a step.
constexpr size_t kPulledBytes = size_t{1} << 20;
constexpr std::array kAway = {2ms, 20ms, 100ms};

/// Whether rank 1 of `host` gets a message of rank 0 while that is away.
bool pulls(MPI_Comm host, int rank, Clock::duration away) {
  std::vector<char> data(kPulledBytes);
  Clock::time_point mine;  // the sender's: when it came back; the receiver's: when it had all
  check_mpi(mpi().barrier(host), "MPI_Barrier");
  if (rank == 0) {
    MPI_Request request = mpi().null_request;
    check_mpi(mpi().isend(data.data(), kPulledBytes, mpi().byte, 1, 0, host, &request),
              "MPI_Isend");
    std::this_thread::sleep_for(away);
    mine = Clock::now();
    check_mpi(mpi().wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
  } else if (rank == 1) {
    check_mpi(mpi().recv(data.data(), kPulledBytes, mpi().byte, 0, 0, host, MPI_STATUS_IGNORE),
              "MPI_Recv");
    mine = Clock::now();
  }
  std::array<Clock::time_point, 2> times = {mine, mine};  // one clock, as it is one host
  for (int from : {0, 1}) {
    auto& time = times.at(static_cast<size_t>(from));
    check_mpi(mpi().bcast(&time, sizeof(time), mpi().byte, from, host), "MPI_Bcast");
  }
  return times[1] < times[0];
}

}  // namespace

Peers find_peers() {
  MPI_Comm host = mpi().null_comm;
  check_mpi(mpi().comm_split_type(mpi().world, MPI_COMM_TYPE_SHARED, 0, mpi().null_info, &host),
            "MPI_Comm_split_type");
  int rank = 0;
  int size = 1;
  int mine = 0;
  int all = 1;
  check_mpi(mpi().comm_rank(host, &rank), "MPI_Comm_rank");
  check_mpi(mpi().comm_size(host, &size), "MPI_Comm_size");
  check_mpi(mpi().comm_rank(mpi().world, &mine), "MPI_Comm_rank");
  check_mpi(mpi().comm_size(mpi().world, &all), "MPI_Comm_size");
  std::vector<int> neighbours(static_cast<size_t>(size));
  check_mpi(mpi().allgather(&mine, 1, mpi().integer, neighbours.data(), 1, mpi().integer, host),
            "MPI_Allgather");
  bool found = false;
  for (size_t i = 0; size > 1 && !found && i < kAway.size(); ++i)
    found = pulls(host, rank, kAway[i]);
  check_mpi(mpi().comm_free(&host), "MPI_Comm_free");
  const std::vector<bool> none(static_cast<size_t>(all), false);
  Peers peers{.on_this_host = none, .pulling = none};
  for (const int neighbour : neighbours) {
    peers.on_this_host[static_cast<size_t>(neighbour)] = true;
    peers.pulling[static_cast<size_t>(neighbour)] = found;
  }
  return peers;
}

}  // namespace rannc::comm
