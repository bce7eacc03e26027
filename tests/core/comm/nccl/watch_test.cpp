#include "comm/nccl/watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

namespace rannc::comm::nccl {
namespace {

using std::chrono::seconds;

constexpr seconds kDeadline{20};  // against hangs

std::atomic<int> inside{0};    // threads that are in a call of NCCL
std::atomic<int> together{0};  // times that a second one came

/// A library that counts who is inside of it, and nothing else.
std::shared_ptr<const Library> fake_library() {
  auto library = std::make_shared<Library>();
  library->api.comm_get_async_error = [](Comm, Result* error) {
    if (++inside > 1) ++together;
    *error = kSuccess;
    --inside;
    return kSuccess;
  };
  library->api.comm_abort = [](Comm) { return kSuccess; };
  library->api.group_start = [] { return kSuccess; };
  library->api.group_end = [] { return kSuccess; };
  library->api.get_error_string = [](Result) { return "error"; };
  library->api.get_last_error = [](Comm) { return ""; };
  return library;
}

/// Asked for whether it has happened, it counts, and blocks while it is told to.
class AskedEvent final : public Event {
 public:
  [[nodiscard]] bool done() override {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !blocks_; });
    return false;
  }
  void wait() override {}
  void block(bool blocks) {
    const std::scoped_lock lock(mutex_);
    blocks_ = blocks;
    changed_.notify_all();
  }
  /// Until it has been asked `times` more.
  [[nodiscard]] bool was_asked(int times) {
    std::unique_lock lock(mutex_);
    const int wanted = asked_ + times;
    return changed_.wait_for(lock, kDeadline, [&] { return asked_ >= wanted; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int asked_ = 0;
  bool blocks_ = false;
};

// ncclCommGetAsyncError joins the thread that did what the communicator was asked for last: two
// that ask at once join it twice.
TEST(Watch, AsksNcclNothingWhileAnotherThreadIsInside) {
  const auto event = std::make_shared<AskedEvent>();
  Watch watch(
      fake_library(), 0, [] { return 600.0; }, [] {}, [](const std::string&) {});
  int communicator = 0;
  watch.add(reinterpret_cast<Comm>(&communicator));
  watch.add(1, event, "for a test");
  together = 0;
  (void)watch.inside("wait", [&] {
    ++inside;
    EXPECT_TRUE(event->was_asked(3));  // the watch has looked meanwhile
    --inside;
    return kSuccess;
  });
  EXPECT_EQ(together, 0);
}

// A device whose memory is being freed waits for its work, and on CUDA so does whoever asks it
// something: the watch, too. Nobody was left to see that the work never ends.
TEST(Watch, ADeviceThatDoesNotAnswerIsAFailureAtTheDeadline) {
  const auto event = std::make_shared<AskedEvent>();
  event->block(true);
  std::promise<std::string> reason;
  std::future<std::string> failed = reason.get_future();
  Watch watch(
      fake_library(), 3, [] { return 0.2; }, [] {},
      [&](const std::string& why) { reason.set_value(why); });
  watch.add(1, event, "for a test");
  ASSERT_TRUE(event->was_asked(1));
  const bool came = failed.wait_for(kDeadline) == std::future_status::ready;
  event->block(false);
  ASSERT_TRUE(came);
  EXPECT_EQ(failed.get(),
            "rank 3 has asked its device for 0.2 s what it has done, and it does not answer, "
            "waiting for a test");
}

}  // namespace
}  // namespace rannc::comm::nccl
