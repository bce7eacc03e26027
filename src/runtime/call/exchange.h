#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::runtime {

/// The messages of one phase of one call: receives posted ahead, and sends with the memory that
/// they read until they are done. A slot numbers a message within the phase.
class Exchange {
 public:
  /// Message `slot` has tag `first_tag + slot`. `stream` computes what is sent, and reads what is
  /// received.
  /// What is on the host beside an accelerator, `device`, travels as messages of the host.
  Exchange(comm::Communicator& comm, comm::Stream& stream, c10::Device device, int64_t first_tag);
  /// After an error, memory that the communicator may still touch is never freed.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Starts sending a plain tensor: see device_memory.h.
  void send(int64_t slot, int to, at::Tensor tensor, comm::Purpose purpose);
  /// Starts receiving into a contiguous tensor.
  void post(int64_t slot, int from, at::Tensor tensor, comm::Purpose purpose);
  // The same in two steps, where others decide when a message is issued.

  /// Takes a plain tensor to send, or a contiguous one to receive into: it is not touched before
  /// what the stream has been given until now is done.
  void hold(int64_t slot, at::Tensor tensor);
  [[nodiscard]] bool holds(int64_t slot) const { return held_.contains(slot); }
  void start_send(int64_t slot, int to, comm::Purpose purpose);
  void start_receive(int64_t slot, int from, comm::Purpose purpose);
  /// Whether receive() finds it.
  [[nodiscard]] bool is_posted(int64_t slot) const { return receives_.contains(slot); }

  /// A posted message; what the stream does from now on finds it there.
  [[nodiscard]] at::Tensor receive(int64_t slot);

  /// A message of this rank to itself.
  void leave(int64_t slot, at::Tensor tensor);
  [[nodiscard]] at::Tensor fetch(int64_t slot);

  /// Frees what has arrived.
  void drop_sent();
  void wait_sends();

  /// Whether a message to or from another rank was ever under way.
  [[nodiscard]] bool used() const { return used_; }

 private:
  struct Message {
    comm::Handle handle;
    at::Tensor tensor;
  };
  struct Held {
    at::Tensor tensor;
    comm::Buffer memory;
  };
  void start_send(Held held, int64_t tag, int to, comm::Purpose purpose);
  void start_receive(Held held, int64_t slot, int from, comm::Purpose purpose);
  [[nodiscard]] bool is_beside(const at::Tensor& tensor) const {
    return tensor.is_cpu() && !device_.is_cpu();
  }

  comm::Communicator& comm_;
  comm::Stream& stream_;
  c10::Device device_;
  int64_t first_tag_;
  bool used_ = false;
  [[nodiscard]] Held take_held(int64_t slot);

  std::vector<Message> sends_;
  std::unordered_map<int64_t, Message> receives_;
  std::unordered_map<int64_t, at::Tensor> own_;
  std::unordered_map<int64_t, Held> held_;
};

}  // namespace rannc::runtime
