#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm/half.h"
#include "comm/ranks.h"
#include "rannc/comm/agreement.h"

namespace rannc::comm {
namespace {

constexpr Purpose kTest{.what = "test"};

template <class T>
void sum_of_one_to_n(int ranks, int64_t count, Element element) {
  on_ranks(ranks, [&](Communicator& comm) {
    // Rank r gives r + 1 + i % 5 at place i, so the sum is n (n + 1) / 2 + n (i % 5).
    std::vector<T> data;
    for (int64_t i = 0; i < count; ++i) data.push_back(T(comm.rank() + 1 + i % 5));
    all_reduce_sum(comm, data.data(), count, element, all_of(comm), kTest);
    const int64_t n = comm.size();
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[static_cast<size_t>(i)], T(n * (n + 1) / 2 + n * (i % 5))) << "place " << i;
    }
  });
}

TEST(AllReduceSum, IsRightForEveryNumberOfRanksAndElements) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t count : {0, 1, 2, 3, 6, 7, 8, 1000}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << count << " elements");
      sum_of_one_to_n<float>(ranks, count, Element::float32);
    }
  }
}

TEST(AllReduceSum, KnowsEveryNumericType) {
  sum_of_one_to_n<double>(3, 10, Element::float64);
  sum_of_one_to_n<int64_t>(3, 10, Element::int64);
  sum_of_one_to_n<int32_t>(3, 10, Element::int32);
  sum_of_one_to_n<int8_t>(3, 10, Element::int8);
  sum_of_one_to_n<uint8_t>(3, 10, Element::uint8);
}

template <class Half>
void small_numbers_add_up(Element element, float big, float small) {
  on_ranks(4, [&](Communicator& comm) {
    std::vector<Half> data(5, Half(comm.rank() == 0 ? big : small));
    all_reduce_sum(comm, data.data(), 5, element, all_of(comm), kTest);
    for (const Half x : data) EXPECT_EQ(static_cast<float>(x), big + 4 * small);
  });
}

TEST(AllReduceSum, AddsHalvesInFloat) {
  // float16 has steps of 2 at 2048: 2048 + 1 would round back to 2048 three times, but the sum
  // 2051 rounds once, to even: 2052. bfloat16 has steps of 2 at 256: 259 rounds to 260.
  small_numbers_add_up<Float16>(Element::float16, 2048, 1);
  small_numbers_add_up<BFloat16>(Element::bfloat16, 256, 1);
}

TEST(AllReduceSum, GivesTheSameBitsOnAllRanks) {
  std::vector<std::vector<float>> results(3);
  on_ranks(3, [&](Communicator& comm) {
    std::vector<float> data;
    for (int i = 0; i < 100; ++i) data.push_back(std::sin(static_cast<float>(i + 7 * comm.rank())));
    all_reduce_sum(comm, data.data(), 100, Element::float32, all_of(comm), kTest);
    results[static_cast<size_t>(comm.rank())] = data;
  });
  const size_t bytes = 100 * sizeof(float);
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), bytes), 0);
  EXPECT_EQ(std::memcmp(results[0].data(), results[2].data(), bytes), 0);
}

// Rings of different size that shared a tag took each other's chunks and corrupted the heap.
TEST(AllReduceSum, OfDifferentRanksAtTheSameTimeStayApart) {
  on_ranks(4, [&](Communicator& comm) {
    const auto repeat = [&](const std::vector<int>& ranks, int64_t count, float expected) {
      if (std::ranges::find(ranks, comm.rank()) == ranks.end()) return;
      for (int i = 0; i < 50; ++i) {
        std::vector<float> data(static_cast<size_t>(count), 1.0F + static_cast<float>(comm.rank()));
        all_reduce_sum(comm, data.data(), count, Element::float32, ranks, kTest);
        ASSERT_EQ(data, std::vector<float>(data.size(), expected));
      }
    };
    std::jthread all([&] { repeat({0, 1, 2, 3}, 1001, 1 + 2 + 3 + 4); });
    std::jthread front([&] { repeat({0, 1, 2}, 17, 1 + 2 + 3); });
    std::jthread pair([&] { repeat({1, 3}, 64, 2 + 4); });
  });
}

TEST(AllReduceSum, RefusesRanksThatTheCallerIsNotOneOf) {
  const auto comms = make_local(2);
  float x = 1;
  EXPECT_THROW(all_reduce_sum(*comms[0], &x, 1, Element::float32, std::vector{1}, kTest),
               std::logic_error);
}

TEST(AllGather, ReturnsEveryRanksBytesInTheOrderOfTheRanks) {
  on_ranks(4, [&](Communicator& comm) {
    // Lengths 0, 1, 2 and 3.
    const std::string mine(static_cast<size_t>(comm.rank()), static_cast<char>('a' + comm.rank()));
    EXPECT_EQ(all_gather(comm, mine, all_of(comm), kTest),
              (std::vector<std::string>{"", "b", "cc", "ddd"}));
    if (comm.rank() % 2 == 1) {
      EXPECT_EQ(all_gather(comm, mine, std::vector{1, 3}, kTest),
                (std::vector<std::string>{"b", "ddd"}));
    }
  });
}

TEST(Broadcast, ReachesEveryRankFromEveryRoot) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    on_ranks(ranks, [&](Communicator& comm) {
      for (int root = 0; root < comm.size(); ++root) {
        const std::string mine = comm.rank() == root ? "the plan of " + std::to_string(root) : "?";
        EXPECT_EQ(broadcast(comm, mine, root, all_of(comm), kTest),
                  "the plan of " + std::to_string(root));
      }
      EXPECT_EQ(broadcast(comm, "", 0, all_of(comm), kTest), "");
    });
  }
}

TEST(Broadcast, InPlaceFillsTheGivenMemory) {
  on_ranks(3, [&](Communicator& comm) {
    std::vector<int> data(4, comm.rank() + 1);
    broadcast_into(comm, data.data(), 4 * sizeof(int), 2, all_of(comm), kTest);
    EXPECT_EQ(data, std::vector<int>(4, 3));
  });
}

TEST(Barrier, LetsNobodyPassBeforeAllHaveCome) {
  std::atomic<int> came = 0;
  on_ranks(5, [&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++came;
      barrier(comm, all_of(comm), kTest);
      ASSERT_GE(came, 5 * round);
      barrier(comm, all_of(comm), kTest);
    }
  });
}

TEST(CollectiveTags, AreEqualOnAllRanksAndAboveThoseOfTheCaller) {
  const auto comms = make_local(3);
  const std::vector<int> all{0, 1, 2};
  const std::vector<int> pair{0, 1};
  EXPECT_EQ(comms[0]->next_collective_tag(pair, kTest), comms[1]->next_collective_tag(pair, kTest));
  const int64_t first = comms[0]->next_collective_tag(all, kTest);
  EXPECT_EQ(comms[1]->next_collective_tag(all, kTest), first);
  EXPECT_EQ(comms[0]->next_collective_tag(all, kTest), first + 1);
  EXPECT_GE(first, int64_t{1} << 30);
  EXPECT_LT(first, int64_t{1} << 31);
}

TEST(AllGatherInto, BringsEveryPieceToItsPlaceForEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 13; ++ranks) {
    on_ranks(ranks, [&](Communicator& comm) {
      const std::array<int64_t, 3> mine{comm.rank(), 10 * comm.rank(), -1};
      std::vector<std::array<int64_t, 3>> all(static_cast<size_t>(ranks));
      all_gather_into(comm, mine.data(), sizeof(mine), all.data(), all_of(comm), kTest);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(all[static_cast<size_t>(rank)], (std::array<int64_t, 3>{rank, 10 * rank, -1}));
      }
    });
  }
}

TEST(AllGatherInto, UnderTagsOfItsOwnMayBeOvertaken) {
  on_ranks(2, [&](Communicator& comm) {
    const auto gather = [&](int64_t tag) {
      const int64_t mine = tag + comm.rank();
      std::array<int64_t, 2> all{};
      all_gather_into(comm, &mine, sizeof(mine), all.data(), all_of(comm), tag, kTest);
      EXPECT_EQ(all, (std::array<int64_t, 2>{tag, tag + 1}));
    };
    std::thread other([&] { gather(100); });  // on another thread, so in any order
    gather(200);
    other.join();
  });
}

TEST(Agree, GivesAllRowsAndSeesADifferenceOnEveryRank) {
  on_ranks(5, [](Communicator& comm) {
    Turn turn{.own = 3 * comm.rank(), .kind = 1, .call = 7, .capture = 99};
    const Agreement same = agree(comm, turn);
    EXPECT_EQ(same.own, (std::vector<int64_t>{0, 3, 6, 9, 12}));
    EXPECT_TRUE(same.is_same);
    if (comm.rank() == 3) turn.call = 8;
    EXPECT_FALSE(agree(comm, turn).is_same);
  });
}

}  // namespace
}  // namespace rannc::comm
