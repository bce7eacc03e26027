#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "comm/half.h"
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

/// Rank r gives r + 1 + i % 5 at place i, so the sum is n (n + 1) / 2 + n (i % 5).
template <class T>
void expect_shards(int ranks, int64_t count_each, Element element) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << count_each << " elements each");
  on_ranks(ranks, [&](Communicator& comm) {
    const int64_t n = comm.size();
    const auto sum = [&](int64_t i) { return static_cast<double>(n * (n + 1) / 2 + n * (i % 5)); };
    // Halves convert to float alone.
    const auto number = [](const T& one) { return static_cast<double>(static_cast<float>(one)); };
    std::vector<T> data;
    for (int64_t i = 0; i < n * count_each; ++i) {
      data.push_back(T(static_cast<float>(comm.rank() + 1 + i % 5)));
    }
    start_reduce_scatter_sum(comm, data.data(), n * count_each, element, all_of(comm), kGradient)
        ->wait();
    const Shard mine =
        own_shard(comm, static_cast<int64_t>(data.size() * sizeof(T)), element, all_of(comm));
    const auto begin = mine.begin / static_cast<int64_t>(sizeof(T));
    ASSERT_EQ(mine.bytes, count_each * static_cast<int64_t>(sizeof(T)));
    ASSERT_EQ(begin, comm.rank() * count_each);
    for (int64_t i = 0; i < n * count_each; ++i) {
      T& one = data[static_cast<size_t>(i)];
      if (i >= begin && i < begin + count_each) {
        ASSERT_EQ(number(one), sum(i)) << "place " << i;
      } else {
        one = T(99.0F);  // whatever was there
      }
    }
    start_all_gather_shards(comm, data.data(), n * count_each, element, all_of(comm), kGradient)
        ->wait();
    for (int64_t i = 0; i < n * count_each; ++i) {
      ASSERT_EQ(number(data[static_cast<size_t>(i)]), sum(i)) << "place " << i;
    }
  });
}

TEST(Shards, AreSummedAndGatheredOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t count_each : {0, 1, 2, 5, 20'000}) {
      expect_shards<float>(ranks, count_each, Element::float32);
    }
  }
  expect_shards<double>(3, 7, Element::float64);
  expect_shards<Float16>(3, 7, Element::float16);
  expect_shards<BFloat16>(3, 7, Element::bfloat16);
  expect_shards<int64_t>(3, 7, Element::int64);
  expect_shards<int32_t>(3, 7, Element::int32);
  expect_shards<uint8_t>(3, 7, Element::uint8);
}

TEST(Shards, OfHalvesAreAddedInFloat) {
  // 2048 + 1 would round back to 2048 three times; the sum 2051 rounds once, to even: 2052.
  on_ranks(4, [&](Communicator& comm) {
    std::vector<Float16> data(8, Float16(comm.rank() == 0 ? 2048.0F : 1.0F));
    start_reduce_scatter_sum(comm, data.data(), 8, Element::float16, all_of(comm), kGradient)
        ->wait();
    for (const size_t place : {0, 1}) {
      EXPECT_EQ(static_cast<float>(data[2 * static_cast<size_t>(comm.rank()) + place]), 2052.0F);
    }
  });
}

TEST(Shards, GoOnBesideSumsAndAmongSomeRanks) {
  on_ranks(4, [&](Communicator& comm) {
    std::vector<float> whole(30'000, static_cast<float>(comm.rank()));
    const Handle sum =
        start_all_reduce_sum(comm, whole.data(), 30'000, Element::float32, all_of(comm), kGradient);
    if (comm.rank() % 2 == 1) {
      const std::vector<int> odd{1, 3};
      const size_t mine = comm.rank() == 1 ? 0 : 1;
      std::vector<double> data{1, 2};
      start_reduce_scatter_sum(comm, data.data(), 2, Element::float64, odd, kGradient)->wait();
      EXPECT_EQ(data[mine], 2 * static_cast<double>(mine + 1));
      data[1 - mine] = -1;
      start_all_gather_shards(comm, data.data(), 2, Element::float64, odd, kGradient)->wait();
      EXPECT_EQ(data, (std::vector<double>{2, 4}));
    }
    sum->wait();
    EXPECT_EQ(whole, std::vector<float>(30'000, 6.0F));
  });
}

TEST(Shards, AreEqual) {
  const auto comms = make_local(2);
  std::vector<float> data(3);
  const std::vector<int> both{0, 1};
  EXPECT_THROW(
      (void)start_reduce_scatter_sum(*comms[0], data.data(), 3, Element::float32, both, kGradient),
      InternalError);
  EXPECT_THROW(
      (void)start_all_gather_shards(*comms[0], data.data(), 3, Element::float32, both, kGradient),
      InternalError);
}

TEST(Shards, NameThePeerThatDoesNotComeAndEndWithTheJob) {
  const std::vector<int> both{0, 1};
  for (const auto start : {&start_reduce_scatter_sum, &start_all_gather_shards}) {
    std::vector<float> data(30, 1.0F);
    const auto begin = [&](Communicator& comm) {
      return start(comm, data.data(), 30, Element::float32, both, kGradient, {}, {});
    };
    const auto late = make_local(2, /*timeout_s=*/0.05);
    try {
      begin(*late[1])->wait();
      FAIL() << "no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 waited 0.05 s for the gradient from rank 0"),
                std::string::npos)
          << error.what();
    }
    const auto ending = make_local(2);
    const Handle handle = begin(*ending[0]);
    ending[1]->abort("no more");
    EXPECT_THROW(handle->wait(), CommError);
  }
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
