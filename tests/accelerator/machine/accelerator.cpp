#include "machine/accelerator.h"

#include <c10/util/Exception.h>

#include <map>

namespace rannc::standin {

Accelerator& Accelerator::get() {
  static auto* accelerator = new Accelerator;
  return *accelerator;
}

void Accelerator::start(int devices, int64_t memory_bytes, double delay_us, uint64_t seed) {
  TORCH_CHECK(devices_.empty(), "the stand-in devices have been started before");
  TORCH_CHECK(devices >= 1 && devices <= 64, devices, " stand-in devices; 1 to 64 can be had");
  delay_us_ = delay_us;
  for (int index = 0; index < devices; ++index) {
    devices_.push_back(std::make_unique<Device>(index, memory_bytes, seed, delay_us_));
  }
  running_ = true;
}

void Accelerator::stop() {
  running_ = false;
  for (const auto& device : devices_) device->drain();  // a stream may wait for one of another
  for (const auto& device : devices_) device->stop();
}

Device& Accelerator::device(int index) {
  TORCH_CHECK(index >= 0 && index < devices(), "standin:", index, ": there are ", devices(),
              " stand-in devices");
  return *devices_[static_cast<size_t>(index)];
}

Device& Accelerator::use(int index) {
  Device& used = device(index);
  TORCH_CHECK(
      (kept_to_ >> index & 1U) != 0, "standin:", index,
      " is used, which is not of this rank: a thread that has not set its device, or memory "
      "that is not the rank's");
  TORCH_CHECK(running_, "standin:", index, " is used after the stand-in devices were stopped");
  used.check();
  used.make_context();
  return used;
}

void Accelerator::count_wait(const std::string& place) {
  TORCH_CHECK(!refuse_waits_, "the host would wait for a stand-in device: ", place);
  waits.add(place);
}

void Accelerator::wait(Mark& mark, Device& device, const std::string& place) {
  count_wait(place);
  mark.wait();
  device.check();
}

namespace {

thread_local int device_of_thread = 0;
thread_local std::map<int, int64_t> streams_of_thread;

}  // namespace

int current_device() { return device_of_thread; }
void set_current_device(int index) { device_of_thread = index; }

int64_t current_stream(int device) {
  const auto found = streams_of_thread.find(device);
  return found == streams_of_thread.end() ? 0 : found->second;
}

void set_current_stream(int device, int64_t stream) { streams_of_thread[device] = stream; }

Queue& issue_to(Device& device, int64_t stream) {
  Queue& queue = device.queue(stream);
  Accelerator::get().issues.add(queue.name());
  return queue;
}

}  // namespace rannc::standin
