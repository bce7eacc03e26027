#include "runtime/call/exchange.h"

#include <c10/util/StringUtil.h>

#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {

Exchange::Exchange(comm::Communicator& comm, comm::Stream& stream, c10::Device device,
                   int64_t first_tag)
    : comm_(comm), stream_(stream), device_(device), first_tag_(first_tag) {}

Exchange::~Exchange() {
  if (sends_.empty() && receives_.empty()) return;
  // Only an error leaves messages behind. The communicator may read or write their memory until
  // the job has ended, which nobody here can wait for, so it is leaked on purpose.
  auto* const abandoned = new std::vector<Message>(std::move(sends_));
  for (auto& [slot, message] : receives_) abandoned->push_back(std::move(message));
}

void Exchange::send(int64_t slot, int to, at::Tensor tensor, comm::Purpose purpose) {
  RANNC_CHECK(is_plain(tensor), c10::str("message ", slot, " to rank ", to));
  drop_sent();
  start_send({tensor, memory_of(tensor, stream_)}, first_tag_ + slot, to, purpose);
}

void Exchange::start_send(Held held, int64_t tag, int to, comm::Purpose purpose) {
  used_ = true;
  const comm::Buffer& memory = held.memory;
  comm::Handle handle = is_beside(held.tensor)
                            ? comm_.send(memory.data, memory.bytes, to, tag, purpose)
                            : comm_.send_from(memory, to, tag, purpose);
  sends_.push_back({std::move(handle), std::move(held.tensor)});
}

void Exchange::post(int64_t slot, int from, at::Tensor tensor, comm::Purpose purpose) {
  RANNC_CHECK(tensor.is_contiguous(), c10::str("message ", slot, " from rank ", from));
  start_receive({tensor, memory_of(tensor, stream_)}, slot, from, purpose);
}

void Exchange::start_receive(Held held, int64_t slot, int from, comm::Purpose purpose) {
  used_ = true;
  const int64_t tag = first_tag_ + slot;
  const comm::Buffer& memory = held.memory;
  comm::Handle handle = is_beside(held.tensor)
                            ? comm_.receive(memory.data, memory.bytes, from, tag, purpose)
                            : comm_.receive_into(memory, from, tag, purpose);
  receives_.insert_or_assign(slot, Message{std::move(handle), std::move(held.tensor)});
}

void Exchange::hold(int64_t slot, at::Tensor tensor) {
  RANNC_CHECK(is_plain(tensor), c10::str("message ", slot));
  comm::Buffer memory = memory_of(tensor, stream_);
  held_.insert_or_assign(slot, Held{std::move(tensor), std::move(memory)});
}

Exchange::Held Exchange::take_held(int64_t slot) {
  const auto found = held_.find(slot);
  RANNC_CHECK(found != held_.end(), c10::str("message ", slot, " has no memory"));
  Held held = std::move(found->second);
  held_.erase(found);
  return held;
}

void Exchange::start_send(int64_t slot, int to, comm::Purpose purpose) {
  start_send(take_held(slot), first_tag_ + slot, to, purpose);
}

void Exchange::start_receive(int64_t slot, int from, comm::Purpose purpose) {
  start_receive(take_held(slot), slot, from, purpose);
}

at::Tensor Exchange::receive(int64_t slot) {
  const auto found = receives_.find(slot);
  RANNC_CHECK(found != receives_.end(), c10::str("message ", slot, " was never posted"));
  stream_.wait(*found->second.handle);
  at::Tensor tensor = std::move(found->second.tensor);
  receives_.erase(found);
  return tensor;
}

void Exchange::leave(int64_t slot, at::Tensor tensor) {
  own_.insert_or_assign(slot, std::move(tensor));
}

at::Tensor Exchange::fetch(int64_t slot) {
  const auto found = own_.find(slot);
  RANNC_CHECK(found != own_.end(),
              c10::str("message ", slot, " of this rank to itself is missing"));
  at::Tensor tensor = std::move(found->second);
  own_.erase(found);
  return tensor;
}

void Exchange::drop_sent() {
  std::erase_if(sends_, [](const Message& sent) { return sent.handle->done(); });
}

void Exchange::wait_sends() {
  for (const Message& sent : sends_) stream_.wait(*sent.handle);
  sends_.clear();
}

}  // namespace rannc::runtime
