#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/faults.h"
#include "machine/tally.h"

namespace rannc::standin {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// All stand-in devices of the process, and what threads do with them. There is one, as torch knows
/// one accelerator of a kind in a process, and it is never destroyed: tensors may outlive `main`.
class Accelerator {
 public:
  static Accelerator& get();

  /// Once, before anything else. `memory_bytes` of each device, `delay_us` as of a Queue.
  void start(int devices, int64_t memory_bytes, double delay_us, uint64_t seed);
  /// Ends all threads. What comes later is not done.
  void stop();
  [[nodiscard]] bool running() const { return running_; }

  [[nodiscard]] int devices() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] Device& device(int index);
  /// The same, for what makes a context on CUDA: throws where `keep_to` forbids it, or where a
  /// kernel has failed.
  Device& use(int index);
  /// Only these devices (bits of their indices) may be used.
  void keep_to(uint64_t devices) { kept_to_ = devices; }

  /// The host waits: counted by thread and `place`. Throws first while waits are refused, and then
  /// what kernels have thrown.
  void wait(Mark& mark, Device& device, const std::string& place);
  void count_wait(const std::string& place);
  void refuse_waits(bool refuse) { refuse_waits_ = refuse; }

  void set_delay(double us) { delay_us_ = us; }

  Tally waits;   ///< of the host for a device
  Tally issues;  ///< work given to streams, by thread and stream
  Faults faults;

 private:
  std::atomic<double> delay_us_ = 0;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> running_ = false;
  std::atomic<uint64_t> kept_to_ = ~uint64_t{0};
  std::atomic<bool> refuse_waits_ = false;
};

/// Of the calling thread, as CUDA's: device 0 and its stream 0 until the thread sets others.
[[nodiscard]] int current_device();
void set_current_device(int index);
[[nodiscard]] int64_t current_stream(int device);
void set_current_stream(int device, int64_t stream);

/// The queue of the current stream of `device`, to give work to: counts and checks, too.
Queue& issue_to(Device& device, int64_t stream);

}  // namespace rannc::standin
