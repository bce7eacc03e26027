#include "rannc/comm/mpi.h"
#include "rannc/util/error.h"

namespace rannc::comm {

bool mpi_available() { return false; }

namespace {

[[noreturn]] void refuse() {
  throw CommError(
      "this build of RaNNC has no MPI: it was configured with -DRANNC_MPI=OFF, or no MPI was "
      "found.\n"
      "  Install one (Debian: libopenmpi-dev openmpi-bin) and build again.");
}

}  // namespace

std::unique_ptr<Communicator> make_mpi(double, double) { refuse(); }

std::string mpi_version() { refuse(); }

bool started_mpi() { return false; }

void finish_mpi() {}

}  // namespace rannc::comm
