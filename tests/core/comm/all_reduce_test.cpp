#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "comm/ranks.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr Purpose kGradient{.what = "gradient"};
constexpr Purpose kStatistics{.what = "statistics"};

const std::vector<int64_t> kCounts = {1, 70'001, 3, 0, 20'000, 5, 1'000, 2};

std::vector<float> numbers(int64_t count, int rank) {
  std::vector<float> data;
  for (int64_t i = 0; i < count; ++i) {
    data.push_back(std::sin(static_cast<float>(i) + 7.0F * static_cast<float>(rank)));
  }
  return data;
}

TEST(StartAllReduceSum, RunsSumsOfUnevenSizesTogether) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    std::vector<std::vector<std::vector<float>>> results(static_cast<size_t>(ranks));
    on_ranks(ranks, [&](Communicator& comm) {
      std::vector<std::vector<float>> data;
      std::vector<Handle> sums;
      for (const int64_t count : kCounts) data.push_back(numbers(count, comm.rank()));
      for (std::vector<float>& one : data) {
        sums.push_back(start_all_reduce_sum(comm, one.data(), static_cast<int64_t>(one.size()),
                                            Element::float32, all_of(comm), kGradient));
      }
      // One that is waited for at once, between those under way, and waits in another order.
      double ranks_here = 1;
      all_reduce_sum(comm, &ranks_here, 1, Element::float64, all_of(comm), kGradient);
      EXPECT_EQ(ranks_here, comm.size());
      for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum) {
        (*sum)->wait();
        EXPECT_TRUE((*sum)->done());
      }
      results[static_cast<size_t>(comm.rank())] = std::move(data);
    });
    for (size_t k = 0; k < kCounts.size(); ++k) {
      std::vector<double> expected(static_cast<size_t>(kCounts[k]));
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<float> mine = numbers(kCounts[k], rank);
        for (size_t i = 0; i < mine.size(); ++i) expected[i] += static_cast<double>(mine[i]);
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(results[0][k][i], expected[i], 1e-6) << "place " << i << " of sum " << k;
      }
      for (const auto& result : results) {
        ASSERT_EQ(result[k], results[0][k]);  // not only nearly
      }
    }
  }
}

TEST(StartAllReduceSum, GoesOnWithoutTheRankThatStartedIt) {
  const auto comms = make_local(2);
  std::vector<int64_t> first(5, 1);
  std::vector<int64_t> second(5, 2);
  const std::vector<int> both{0, 1};
  const Handle one =
      start_all_reduce_sum(*comms[0], first.data(), 5, Element::int64, both, kGradient);
  EXPECT_FALSE(one->done());
  // This thread is rank 1 only from here on: it completes the steps of both.
  const Handle other =
      start_all_reduce_sum(*comms[1], second.data(), 5, Element::int64, both, kGradient);
  EXPECT_TRUE(one->done());
  EXPECT_TRUE(other->done());
  EXPECT_EQ(first, std::vector<int64_t>(5, 3));
  EXPECT_EQ(second, first);
}

TEST(StartAllReduceSum, KeepsTheMemoryUntilItIsDone) {
  const auto comms = make_local(2);
  const std::vector<int> both{0, 1};
  auto memory = std::make_shared<std::vector<float>>(100, 1.0F);
  const std::weak_ptr<std::vector<float>> watched = memory;
  Handle handle = start_all_reduce_sum(*comms[0], memory->data(), 100, Element::float32, both,
                                       kGradient, memory);
  memory.reset();
  handle.reset();  // nobody waits for it; the other rank needs it all the same
  EXPECT_FALSE(watched.expired());
  std::vector<float> other(100, 2.0F);
  all_reduce_sum(*comms[1], other.data(), 100, Element::float32, both, kGradient);
  EXPECT_EQ(other, std::vector<float>(100, 3.0F));
  EXPECT_TRUE(watched.expired());
}

TEST(StartAllReduceSum, OfOnePurposeDoesNotTakeMessagesOfAnother) {
  // The ranks do not agree on which of the two comes first, as where a replica has no rows.
  on_ranks(2, [&](Communicator& comm) {
    std::vector<float> gradient(1'000, 1.0F);
    std::vector<float> statistic(10, 10.0F);
    const auto start = [&](std::vector<float>& data, Purpose purpose) {
      return start_all_reduce_sum(comm, data.data(), static_cast<int64_t>(data.size()),
                                  Element::float32, all_of(comm), purpose);
    };
    std::vector<Handle> sums;
    if (comm.rank() == 0) sums.push_back(start(gradient, kGradient));
    sums.push_back(start(statistic, kStatistics));
    if (comm.rank() == 1) sums.push_back(start(gradient, kGradient));
    for (const Handle& sum : sums) sum->wait();
    EXPECT_EQ(gradient, std::vector<float>(1'000, 2.0F));
    EXPECT_EQ(statistic, std::vector<float>(10, 20.0F));
  });
}

TEST(StartAllReduceSum, NamesThePeerThatDoesNotCome) {
  const auto comms = make_local(3, /*timeout_s=*/0.05);
  std::vector<float> data(30, 1.0F);
  const Handle sum = start_all_reduce_sum(*comms[1], data.data(), 30, Element::float32,
                                          std::vector{0, 1, 2}, kGradient);
  try {
    sum->wait();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 waited 0.05 s for the gradient from rank 0"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW((void)sum->done(), CommError);
}

TEST(StartAllReduceSum, EndsWithTheJob) {
  const auto comms = make_local(2);
  std::vector<float> data(30, 1.0F);
  const Handle sum = start_all_reduce_sum(*comms[0], data.data(), 30, Element::float32,
                                          std::vector{0, 1}, kGradient);
  comms[1]->abort("no more");
  EXPECT_THROW(sum->wait(), CommError);
  // What is started afterwards says so, too.
  EXPECT_THROW(start_all_reduce_sum(*comms[0], data.data(), 30, Element::float32, std::vector{0, 1},
                                    kGradient)
                   ->wait(),
               CommError);
}

}  // namespace
}  // namespace rannc::comm
