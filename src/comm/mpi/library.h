#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

namespace rannc::comm {

/// MPI's functions and handles in a library that is opened at the first use. Nothing is linked to
/// it: an extension that was built once runs with the MPI of any cluster of the same binary
/// interface (all of Open MPI 4 and 5), and without MPI where ranks meet in another way.
struct Mpi {
  std::string file;

  decltype(&MPI_Abort) abort;
  decltype(&MPI_Allgather) allgather;
  decltype(&MPI_Barrier) barrier;
  decltype(&MPI_Bcast) bcast;
  decltype(&MPI_Cancel) cancel;
  decltype(&MPI_Comm_dup) comm_dup;
  decltype(&MPI_Comm_free) comm_free;
  decltype(&MPI_Comm_get_attr) comm_get_attr;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Comm_split_type) comm_split_type;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Finalized) finalized;
  decltype(&MPI_Get_count) get_count;
  decltype(&MPI_Get_library_version) get_library_version;
  decltype(&MPI_Ibarrier) ibarrier;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Initialized) initialized;
  decltype(&MPI_Irecv) irecv;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Query_thread) query_thread;
  decltype(&MPI_Recv) recv;
  decltype(&MPI_Testsome) testsome;
  decltype(&MPI_Wait) wait;

  MPI_Comm world;
  MPI_Comm null_comm;
  MPI_Datatype byte;
  MPI_Datatype integer;
  MPI_Errhandler errors_return;
  MPI_Info null_info;
  MPI_Request null_request;
};

/// The process's MPI. Throws CommError where no library can be opened, and says which were tried.
/// First one that the process has, then RANNC_MPI_LIBRARY, the one beside the `mpirun` of PATH, and
/// the one that the loader finds.
[[nodiscard]] const Mpi& mpi();

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace rannc::comm
