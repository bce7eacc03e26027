#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "rannc/comm/communicator.h"
#include "rannc/comm/links.h"

namespace rannc::runtime {

/// The order of `device`'s work: for an accelerator that of the stream which is current where it is
/// asked, for the CPU the host's. Made of c10's streams and events, so it is any accelerator's.
[[nodiscard]] std::shared_ptr<comm::Stream> device_stream(c10::Device device);

/// A stream of `device` beside the current ones, of high priority: for what others wait for.
[[nodiscard]] std::shared_ptr<comm::Stream> side_stream(c10::Device device);

/// comm::make_nccl() for `device`, which is not the CPU; the others as there.
[[nodiscard]] std::shared_ptr<comm::Communicator> nccl(std::shared_ptr<comm::Communicator> host,
                                                       c10::Device device,
                                                       const std::string& library, bool one_stream,
                                                       bool order_each = false);

/// comm::reconnect_nccl() with memory of `device`.
void reconnect_nccl(comm::Communicator& communicator, c10::Device device);

/// Messages and sums of `device`'s memory over `host`, through pinned memory of the host, in the
/// order of the device's work. All else is done by `host`, which lives on.
///
/// A thread of its own copies what the device has computed to the host, on a stream of its own, and
/// waits for it before it is sent, in pieces, so that one is copied while another one travels. Who
/// waits for a message or a sum issues the copies to the device, on its current stream, and does
/// not wait for them. At most `pinned_bytes` of pinned memory are in use at any time; messages
/// beyond go through ordinary memory. For the CPU: `host` itself.
///
/// Waits for the device's copies end at the deadline of `host`; a copy that fails is a CommError of
/// the operation.
[[nodiscard]] std::shared_ptr<comm::Communicator> staged(std::shared_ptr<comm::Communicator> host,
                                                         c10::Device device, int64_t pinned_bytes);

/// What messages of `device`'s memory between two ranks take over `comm`: see comm/links.h.
/// Collective.
[[nodiscard]] comm::LinkSpeeds measure_links(comm::Communicator& comm, c10::Device device);

}  // namespace rannc::runtime
