#include "rannc/runtime/collective.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {

comm::Handle start(Collective kind, const at::Tensor& tensor, comm::Communicator& comm,
                   comm::Stream& stream, std::span<const int> ranks, comm::Purpose purpose) {
  RANNC_CHECK(is_plain(tensor), purpose.what);
  const comm::Buffer memory = memory_of(tensor, stream);
  const auto owner = std::make_shared<at::Tensor>(tensor);
  const std::optional<comm::Element> known = element_of(tensor);
  if (!known) {
    throw Error(c10::str("ranks cannot share a flat tensor of dtype ", tensor.scalar_type()));
  }
  const comm::Element element = *known;
  switch (kind) {
    case Collective::sum:
      return comm.start_sum(memory, element, ranks, purpose, owner);
    case Collective::reduce_scatter:
      return comm.start_reduce_scatter(memory, element, ranks, purpose, owner);
    case Collective::all_gather:
      return comm.start_all_gather(memory, element, ranks, purpose, owner);
  }
  RANNC_CHECK(false, "unknown kind of collective");
}

void connect(const comm::Traffic& traffic, comm::Communicator& comm, comm::Stream& stream,
             c10::Device device) {
  if (!comm.is_in_order() || comm.size() == 1) return;
  int64_t longest = 8;
  for (const comm::Traffic::Sum& sum : traffic.sums) {
    for (int64_t bytes : sum.bytes) longest = std::max(longest, bytes);
    for (int64_t bytes : sum.sharded) longest = std::max(longest, bytes);
  }
  const at::Tensor scratch =
      at::zeros({longest}, at::TensorOptions().dtype(at::kByte).device(device));
  comm.connect(traffic, memory_of(scratch, stream));
}

}  // namespace rannc::runtime
