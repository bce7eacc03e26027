#include "rannc/comm/local.h"

#include <gtest/gtest.h>

#include "comm/ranks.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr Purpose kTest{.what = "test"};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

TEST(Local, MessagesWithEqualTagsArriveInTheOrderSent) {
  const auto comms = make_local(2);
  int sent[] = {1, 2, 3};
  int received[] = {0, 0, 0};
  std::vector<Handle> handles;
  // Tag 5 twice with tag 6 in between; the receives are posted in another order.
  handles.push_back(comms[0]->send(&sent[0], sizeof(int), 1, 5, kTest));
  handles.push_back(comms[0]->send(&sent[1], sizeof(int), 1, 6, kTest));
  handles.push_back(comms[0]->send(&sent[2], sizeof(int), 1, 5, kTest));
  handles.push_back(comms[1]->receive(&received[0], sizeof(int), 0, 6, kTest));
  handles.push_back(comms[1]->receive(&received[1], sizeof(int), 0, 5, kTest));
  handles.push_back(comms[1]->receive(&received[2], sizeof(int), 0, 5, kTest));
  for (const Handle& handle : handles) EXPECT_TRUE(handle->done());
  EXPECT_EQ(received[0], 2);
  EXPECT_EQ(received[1], 1);
  EXPECT_EQ(received[2], 3);
}

TEST(Local, ASendIsDoneOnlyWhenItIsReceived) {
  const auto comms = make_local(2);
  int sent = 7;
  int received = 0;
  const Handle send = comms[0]->send(&sent, sizeof(int), 1, 0, kTest);
  EXPECT_FALSE(send->done());
  sent = 8;  // until then the memory belongs to the operation, as on a network
  comms[1]->receive(&received, sizeof(int), 0, 0, kTest)->wait();
  EXPECT_TRUE(send->done());
  EXPECT_EQ(received, 8);
}

TEST(Local, ARankTalksToItself) {
  const auto comms = make_local(1);
  int sent = 7;
  int received = 0;
  const Handle receive = comms[0]->receive(&received, sizeof(int), 0, 0, kTest);
  comms[0]->send(&sent, sizeof(int), 0, 0, kTest)->wait();
  EXPECT_TRUE(receive->done());
  EXPECT_EQ(received, 7);
}

TEST(Local, AWaitWithoutAnswerNamesThePeerAndThePurpose) {
  const auto comms = make_local(3, /*timeout_s=*/0.05);
  int x = 0;
  const Handle receive = comms[0]->receive(&x, sizeof(int), 2, 0,
                                           {.what = "activation", .stage = 1, .micro_batch = 3});
  const std::string expected =
      "rank 0 waited 0.05 s for the activation of micro-batch 3 from rank 2 (stage 1); rank 2 "
      "waits "
      "for nobody";
  EXPECT_EQ(error_of([&] { receive->wait(); }).substr(0, expected.size()), expected);
  // Its memory is free again: a late message does not write there.
  int late = 9;
  EXPECT_FALSE(comms[2]->send(&late, sizeof(int), 0, 0, kTest)->done());
  EXPECT_EQ(x, 0);
}

TEST(Local, AWaitWithoutAnswerNamesTheRankAtTheRoot) {
  auto comms = make_local(3, /*timeout_s=*/20);
  int x = 0;
  int y = 0;
  comms[0]->set_timeout_s(0.2);
  std::string middle;
  std::jthread rank1([&] {
    middle = error_of([&] {
      comms[1]->receive(&y, sizeof(int), 2, 0, {.what = "gradient", .stage = 2})->wait();
    });
  });
  const std::string expected =
      "rank 0 waited 0.2 s for the activation from rank 1; rank 1 waits for the gradient from rank "
      "2 "
      "(stage 2); rank 2 waits for nobody: it computes";
  const std::string error =
      error_of([&] { comms[0]->receive(&x, sizeof(int), 1, 0, {.what = "activation"})->wait(); });
  EXPECT_EQ(error.substr(0, expected.size()), expected);
  comms[0]->abort("enough");
  rank1.join();
  EXPECT_EQ(middle, "rank 0 aborted: enough");
}

// Ranks give up one after the other: those asked later answer for the wait that they gave up.
TEST(Local, ARankThatHasGivenUpIsNotTheRoot) {
  const auto comms = make_local(3, /*timeout_s=*/0.05);
  int x = 0;
  const auto wait_for_next = [&](int rank) {
    return error_of([&] {
      comms[static_cast<size_t>(rank)]
          ->receive(&x, sizeof(int), rank + 1, 0, {.what = "activation"})
          ->wait();
    });
  };
  (void)wait_for_next(1);
  const std::string expected =
      "rank 0 waited 0.05 s for the activation from rank 1; rank 1 waits for the activation from "
      "rank 2; rank 2 waits for nobody";
  EXPECT_EQ(wait_for_next(0).substr(0, expected.size()), expected);
}

TEST(Local, AbortWakesEverybodyAndRefusesFurtherMessages) {
  on_ranks(4, [](Communicator& comm) {
    int x = 0;
    if (comm.rank() == 3) {
      comm.abort("the model has a hole");
      return;
    }
    EXPECT_EQ(error_of([&] { comm.receive(&x, sizeof(int), 3, 0, kTest)->wait(); }),
              "rank 3 aborted: the model has a hole");
    EXPECT_EQ(error_of([&] { (void)comm.send(&x, sizeof(int), 3, 0, kTest); }),
              "rank 3 aborted: the model has a hole");
  });
}

TEST(Local, SidesThatDisagreeAboutTheSizeBothFail) {
  const auto comms = make_local(2);
  int64_t x = 0;
  const Handle send = comms[0]->send(&x, 8, 1, 3, kTest);
  const Handle receive = comms[1]->receive(&x, 4, 0, 3, kTest);
  const std::string expected = "rank 0 sends 8 bytes with tag 3 to rank 1, which expects 4 bytes";
  EXPECT_EQ(error_of([&] { send->wait(); }), expected);
  EXPECT_EQ(error_of([&] { receive->wait(); }), expected);
}

}  // namespace
}  // namespace rannc::comm
