// What Python and other libraries call, with types of C.
#include "backend/allocator.h"
#include "backend/generator.h"
#include "backend/pinned.h"
#include "machine/accelerator.h"

using rannc::standin::Accelerator;
using rannc::standin::Fault;
using rannc::standin::Mark;
using rannc::standin::Queue;

extern "C" {

void standin_start(int devices, int64_t memory_bytes, double delay_us, uint64_t seed) {
  Accelerator::get().start(devices, memory_bytes, delay_us, seed);
}
void standin_stop() { Accelerator::get().stop(); }
int standin_has_context(int device) {
  return Accelerator::get().device(device).has_context() ? 1 : 0;
}
void standin_set_delay(double us) { Accelerator::get().set_delay(us); }
void standin_keep_to(uint64_t devices) { Accelerator::get().keep_to(devices); }
void standin_limit_memory(int device, double fraction) {
  rannc::standin::Allocator::get().limit(device, fraction);
}

// State of the default generator.
uint64_t standin_seed(int device) {
  return rannc::standin::default_generator(device).current_seed();
}
uint64_t standin_offset(int device) {
  return rannc::standin::default_generator(device).get_offset();
}
void standin_set_seed(int device, uint64_t seed, uint64_t offset) {
  at::Generator generator = rannc::standin::default_generator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
  generator.set_offset(offset);
}

void standin_refuse_waits(int refuse) { Accelerator::get().refuse_waits(refuse != 0); }
void standin_clear_counts() {
  Accelerator::get().waits.clear();
  Accelerator::get().issues.clear();
  rannc::standin::PinnedMemory::get().reset_peak_stats();
}
// Of pinned memory, since the counts were cleared.
int64_t standin_most_pinned_bytes() {
  return rannc::standin::PinnedMemory::get().get_stats().active_bytes.peak;
}
// Text that lives until the thread's next call.
const char* standin_waits() {
  thread_local std::string text;
  text = Accelerator::get().waits.lines();
  return text.c_str();
}
const char* standin_issues() {
  thread_local std::string text;
  text = Accelerator::get().issues.lines();
  return text.c_str();
}

void standin_fail(int fault, int nth) {
  Accelerator::get().faults.plan(static_cast<Fault>(fault), nth);
}
void standin_slow_links(double latency_us, double bytes_per_s) {
  Accelerator::get().faults.slow_links(latency_us, bytes_per_s);
}
void standin_forget_error(int device) { Accelerator::get().device(device).forget_error(); }

// The stream of this native handle does nothing more until what is returned is released.
void* standin_hold(void* stream) {
  auto* mark = new std::shared_ptr<Mark>(std::make_shared<Mark>());
  static_cast<Queue*>(stream)->wait_for(*mark);
  return mark;
}
void standin_release(void* held) {
  const std::unique_ptr<std::shared_ptr<Mark>> mark(static_cast<std::shared_ptr<Mark>*>(held));
  (*mark)->reach();
}

// For libraries that work on a stream by its native handle, which is a Queue.
void standin_give(void* stream, void (*work)(void*), void* argument) {
  static_cast<Queue*>(stream)->give([=] { work(argument); });
}
// For libraries that take memory of `device` themselves, in whole pages. Null: there is none.
void* standin_take(int device, int64_t bytes) {
  return Accelerator::get().device(device).memory().take(bytes);
}
void standin_give_back(int device, void* address, int64_t bytes) {
  Accelerator::get().device(device).memory().give_back(address, bytes);
}
int standin_current_device() { return rannc::standin::current_device(); }
// Where a kernel of `device` finds what tensors call `address`. Null: it may not use it.
void* standin_for_kernels(int device, const void* address) {
  const auto& memory = Accelerator::get().device(device).memory();
  return memory.holds(address) ? memory.for_kernels(address) : nullptr;
}

}  // extern "C"
