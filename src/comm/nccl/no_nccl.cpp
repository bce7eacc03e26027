#include "rannc/comm/nccl.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr const char* kAbsent =
    "this build of RaNNC has no NCCL: it was configured with -DRANNC_NCCL=OFF.\n"
    "  Build it without that, or use Config(device_transport='staged').";

}  // namespace

bool nccl_available() { return false; }

NcclLibrary find_nccl(const std::string&) { throw CommError(kAbsent); }

std::string nccl_version_text(int version) { return std::to_string(version); }

std::unique_ptr<Communicator> make_nccl(std::shared_ptr<Communicator>, NcclOptions) {
  throw CommError(kAbsent);
}

void reconnect_nccl(Communicator&, const std::function<Buffer(int64_t)>&) {}

void end_nccl(Communicator&) {}

}  // namespace rannc::comm
