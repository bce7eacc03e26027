#pragma once

#include <memory>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// Whether this build has MPI.
[[nodiscard]] bool mpi_available();

/// The job's ranks over a duplicate of MPI_COMM_WORLD. Starts MPI when nobody has
/// (MPI_THREAD_MULTIPLE), and then finalizes it in finish_mpi(); a start-up that a rank never
/// reaches ends the process after `start_timeout_s` with one line. Without mpirun: one rank.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi(double timeout_s, double start_timeout_s = 60);

/// Finalizes MPI if make_mpi started it. To be called once, at exit, after the last communicator
/// is gone; does nothing when MPI was never started or the job has been aborted.
void finish_mpi();

}  // namespace rannc::comm
