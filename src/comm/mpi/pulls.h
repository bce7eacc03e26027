#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <vector>

namespace rannc::comm {

/// Of each rank of `comm`, whether messages to and from it move without the sender's processor, as
/// where the receiver reads the sender's memory itself. Tried out between two ranks of each host;
/// ranks of other hosts count as ones that need the sender. Collective.
std::vector<bool> pulling_peers(MPI_Comm comm);

}  // namespace rannc::comm
