#pragma once

#include <memory>

#include "comm/progress/flights.h"

namespace rannc::comm {

/// Over duplicates of MPI_COMM_WORLD, so every rank of the job makes it. Apart from start-up and
/// the end of the process, MPI is called only here.
[[nodiscard]] std::unique_ptr<Flights> make_mpi_flights();

}  // namespace rannc::comm
