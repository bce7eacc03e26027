#include "machine/queue.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <exception>
#include <utility>

namespace rannc::standin {

void Mark::reach() {
  const std::lock_guard lock(mutex_);
  time_ = std::chrono::steady_clock::now();
  reached_ = true;
  changed_.notify_all();
}

bool Mark::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

Queue::Queue(std::string name, uint64_t seed, const std::atomic<double>& delay_us,
             std::function<void(const char*)> failed)
    : name_(std::move(name)),
      delay_us_(delay_us),
      failed_(std::move(failed)),
      random_(seed),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Queue::push(Work work, Kind kind) {
  const std::lock_guard lock(mutex_);
  items_.push_back({std::move(work), kind});
  changed_.notify_one();
}

std::shared_ptr<Mark> Queue::mark() {
  auto mark = std::make_shared<Mark>();
  push([mark] { mark->reach(); }, Kind::mark);
  return mark;
}

void Queue::wait_for(std::shared_ptr<Mark> mark) {
  give_at_once([mark = std::move(mark)] { mark->wait(); });
}

bool Queue::idle() const {
  const std::lock_guard lock(mutex_);
  return items_.empty() && !working_;
}

// Half of the work waits for up to four times the mean: two streams then change places often, which
// equal delays would not do.
void Queue::delay() {
  const double mean_us = delay_us_;
  if (mean_us <= 0 || std::bernoulli_distribution(0.5)(random_)) return;
  const double us = std::uniform_real_distribution<double>(0, 4 * mean_us)(random_);
  std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
}

void Queue::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would be most of a short delay
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    working_ = item.kind != Kind::mark;  // who has seen the last mark finds the queue idle
    lock.unlock();
    if (item.kind == Kind::kernel) delay();
    try {
      item.work();
    } catch (const std::exception& error) {
      failed_(error.what());
    }
    item.work = nullptr;
    lock.lock();
    working_ = false;
  }
}

}  // namespace rannc::standin
