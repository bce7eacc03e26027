#include "rannc/comm/device.h"

#include <gtest/gtest.h>

#include "comm/ranks.h"
#include "rannc/comm/communicator.h"
#include "rannc/comm/local.h"

namespace rannc::comm {
namespace {

constexpr Purpose kTest{.what = "test"};

/// Work that writes a number, and is done when somebody waits for it.
class Write final : public Event {
 public:
  Write(int& number, int value) : number_(number), value_(value) {}
  [[nodiscard]] bool done() override { return done_; }
  void wait() override {
    number_ = value_;
    done_ = true;
  }

 private:
  int& number_;
  const int value_;
  bool done_ = false;
};

TEST(Device, WhatIsSentIsReadWhenItIsThere) {
  const auto comms = make_local(2);
  int sent = 0;
  int received = 0;
  const Handle send =
      comms[0]->send_from({&sent, sizeof(int), std::make_shared<Write>(sent, 7)}, 1, 0, kTest);
  comms[1]->receive(&received, sizeof(int), 0, 0, kTest)->wait();
  EXPECT_TRUE(send->done());
  EXPECT_EQ(received, 7);
}

TEST(Device, MemoryIsReceivedIntoWhenNobodyWritesItAnyMore) {
  const auto comms = make_local(2);
  const int sent = 7;
  int received = 0;
  const Handle send = comms[0]->send(&sent, sizeof(int), 1, 0, kTest);
  const auto ready = std::make_shared<Write>(received, 8);
  comms[1]->receive_into({&received, sizeof(int), ready}, 0, 0, kTest)->wait();
  EXPECT_TRUE(send->done());
  EXPECT_TRUE(ready->done());
  EXPECT_EQ(received, 7);
}

TEST(Device, WhatIsSummedIsReadWhenItIsThere) {
  on_ranks(3, [](Communicator& comm) {
    int number = 0;
    const auto ready = std::make_shared<Write>(number, 1 + comm.rank());
    comm.start_sum({&number, sizeof(int), ready}, Element::int32, std::vector{0, 1, 2}, kTest)
        ->wait();
    EXPECT_EQ(number, 6);
  });
}

TEST(Device, AHostsWorkIsDoneAtOnceAndAnotherStreamsLater) {
  EXPECT_EQ(make_host_stream()->record(), nullptr);
  EXPECT_FALSE(LateStream(3600).record()->done());
  LateStream late(0.001);
  const std::shared_ptr<Event> event = late.record();
  late.wait(*event);
  EXPECT_TRUE(event->done());
  EXPECT_EQ(late.recorded(), 1);
  EXPECT_EQ(late.waited(), 1);
}

}  // namespace
}  // namespace rannc::comm
