#pragma once

#include <string>

namespace rannc::comm {

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace rannc::comm
