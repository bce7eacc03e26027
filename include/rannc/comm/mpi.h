#pragma once

#include <memory>
#include <string>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// Whether this build knows MPI and its library can be opened, which happens at the first use.
[[nodiscard]] bool mpi_available();

/// The library's own words and its file. Throws CommError where there is none.
[[nodiscard]] std::string mpi_version();

/// The job's ranks over a duplicate of MPI_COMM_WORLD. Starts MPI when nobody has
/// (MPI_THREAD_MULTIPLE), and then finalizes it in finish_mpi(); a start-up that a rank never
/// reaches ends the process after `start_timeout_s` with one line. Without mpirun: one rank.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi(double timeout_s, double start_timeout_s = 60);

/// Whether make_mpi started MPI. Otherwise another library did and finalizes it, and finish_mpi()
/// has to be called before that.
[[nodiscard]] bool started_mpi();

/// Leaves the job: waits until every rank has, stops the communicators' threads, and finalizes MPI
/// if make_mpi started it. For the end of the process only: communicators throw CommError from then
/// on, and threads still blocked in a wait stay there. Idempotent; does nothing when MPI was never
/// started. Where make_mpi started MPI, exit() calls it: with exit code 0; with another, MPI is
/// left as it is, so that mpirun ends the job.
void finish_mpi();

}  // namespace rannc::comm
