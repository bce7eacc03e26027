#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// Whether this build can use NCCL: not with -DRANNC_NCCL=OFF.
[[nodiscard]] bool nccl_available();

struct NcclLibrary {
  std::string file;
  int version = 0;  ///< 23004 is 2.30.4
};
/// Opens the library: `file`, or without it the one that this process has opened already, as torch
/// has, else the system's. Throws CommError, which says what to do, where there is none, or one
/// that is too old.
[[nodiscard]] NcclLibrary find_nccl(const std::string& file = {});
/// "2.30.4"
[[nodiscard]] std::string nccl_version_text(int version);

struct NcclOptions {
  std::string file;  ///< as for find_nccl()
  /// One stream for everything, where NCCL does not order what several communicators do.
  bool one_stream = false;
  /// NCCL was started by others without the order of launches that NCCL_LAUNCH_ORDER_IMPLICIT asks
  /// for: our communicators ask for it themselves, which they can from
  /// 2.31 on.
  bool order_each = false;
  /// A stream of the device, of high priority, beside that which computes.
  std::function<std::shared_ptr<Stream>()> make_stream;
  /// Makes this rank's device that of the calling thread.
  std::function<void()> use_device = [] {};
};

/// Messages and sums of a device's memory by NCCL (2.26 or newer), in order (is_in_order()); all
/// else is done by `host`. Collective, and under the deadline of `host`. A sum is over ranks that
/// connect() has been told; a pair of ranks that it has not is connected by its first message.
///
/// A thread watches: an operation that has not ended timeout_s after those before it, or an error
/// that NCCL reports, aborts NCCL's communicators, and then the job, with the reason. Throws
/// CommError where a rank has no library, or ranks have different versions.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl(std::shared_ptr<Communicator> host,
                                                      NcclOptions options);

/// Ends the communicators of NCCL that `communicator` has, and connects new ones for the same
/// traffic; does nothing for one of another kind. Collective; no message is under way.
/// `scratch`: makes zeroed memory of so many bytes, which lives until this returns.
void reconnect_nccl(Communicator& communicator,
                    const std::function<Buffer(int64_t bytes)>& scratch);

/// Ends them for good, and the thread that watches, while the device can still be asked: at the end
/// of a process its driver may go before `communicator` does. Does nothing for one of another kind.
void end_nccl(Communicator& communicator);

}  // namespace rannc::comm
