#include "rannc/plan/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

using Runs = std::vector<Run>;
using Numbers = std::vector<int64_t>;

Box box(std::vector<int64_t> begin, std::vector<int64_t> size) {
  return {std::move(begin), std::move(size)};
}

template <class Function>
std::string plan_error(Function function) {
  try {
    function();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Layout, OfReplicasMovesNothingBetweenThem) {
  const Layout both = Layout::whole("w", {2, 3}, {0, 1});
  EXPECT_EQ(both.moves(both), (std::vector<Move>{{0, 0, {{0, 0, 6}}}, {1, 1, {{0, 0, 6}}}}));
  EXPECT_EQ(both.numel(1), 6);
  EXPECT_EQ(both.numel(2), 0);
  EXPECT_EQ(both.holders(5), (std::vector<Rank>{0, 1}));
  EXPECT_EQ(both.answers(), (std::vector<Answer>{{0, {{0, 0, 6}}}}));
}

TEST(Layout, SpreadsReceiversOverEqualHolders) {
  const Layout two = Layout::whole("w", {4}, {3, 5});
  const std::vector<Move> moves = two.moves(Layout::whole("w", {4}, {0, 1, 2}));
  EXPECT_EQ(moves,
            (std::vector<Move>{{3, 0, {{0, 0, 4}}}, {5, 1, {{0, 0, 4}}}, {3, 2, {{0, 0, 4}}}}));
}

TEST(Layout, SpreadsReceiversOfOtherPartsOverEqualHolders) {
  const Layout two = Layout::whole("w", {4}, {0, 1});
  const Part all{{box({0}, {4})}};
  Part left = all, right = all;
  left.range = {0, 2};
  right.range = {2, 4};
  const Layout shards("w", {4}, {{left, {2}}, {right, {3}}});
  EXPECT_EQ(two.moves(shards), (std::vector<Move>{{0, 2, {{0, 0, 2}}}, {1, 3, {{2, 0, 2}}}}));
}

TEST(Layout, OfThreeRangesOfColumnsIsOneArray) {
  // A fused QKV of 2 x 6 with one column of Q, K and V each on two ranks: rank 1 has the columns 1,
  // 3 and 5. Its array is Q's column, then K's, then V's: numbers 1 7, 3 9, 5 11.
  const auto columns = [](int64_t first) {
    return Part{
        {box({0, first}, {2, 1}), box({0, first + 2}, {2, 1}), box({0, first + 4}, {2, 1})}};
  };
  const Layout sharded("qkv", {2, 6}, {{columns(0), {0}}, {columns(1), {1}}});
  const std::vector<Move> moves = sharded.moves(Layout::whole("qkv", {2, 6}, {1}));
  ASSERT_EQ(moves.size(), 2U);
  EXPECT_EQ(moves[1].from, 1);
  EXPECT_EQ(moves[1].runs,
            (Runs{{0, 1, 1}, {2, 3, 1}, {4, 5, 1}, {1, 7, 1}, {3, 9, 1}, {5, 11, 1}}));
  EXPECT_EQ(moves[0].numel(), 6);
}

TEST(Layout, MovesOfARankAreThoseItSendsOrReceives) {
  const Layout from = Layout::whole("w", {4}, {0, 1});
  const Layout to = Layout::whole("w", {4}, {0, 2, 3});
  const std::vector<Move> all = from.moves(to);
  for (Rank rank = 0; rank < 5; ++rank) {
    std::vector<Move> own = all;
    std::erase_if(own, [&](const Move& move) { return move.from != rank && move.to != rank; });
    EXPECT_EQ(from.moves(to, rank), own) << rank;
  }
}

TEST(Layout, IsEqualHoweverItsBoxesAreCut) {
  const Layout one("w", {4, 2}, {{{{box({0, 0}, {4, 2})}}, {0, 1}}});
  const Layout two("w", {4, 2},
                   {{{{box({0, 0}, {3, 2}), box({3, 0}, {1, 2})}}, {0}},
                    {{{box({0, 0}, {4, 2})}, std::pair<int64_t, int64_t>{0, 8}}, {1}},
                    {{}, {2}}});
  EXPECT_EQ(one, two);
  EXPECT_NE(one, Layout::whole("w", {4, 2}, {0}));
  EXPECT_NE(one, Layout::whole("w", {2, 4}, {0, 1}));
  // A range of all numbers is none, so ranks 0 and 1 of this one have one part.
  const Part whole{{box({0, 0}, {4, 2})}};
  EXPECT_EQ(Layout("w", {4, 2}, {{whole, {0}}, {{whole.boxes, std::pair(0, 8)}, {1}}}).parts(),
            one.parts());
  // The same numbers in another order.
  EXPECT_NE(one, Layout("w", {4, 2}, {{{{box({3, 0}, {1, 2}), box({0, 0}, {3, 2})}}, {0, 1}}}));
}

TEST(Layout, OfAScalarIsOneNumber) {
  const Layout scalar = Layout::whole("scale", {}, {1});
  EXPECT_EQ(scalar.numel(1), 1);
  EXPECT_EQ(scalar.moves(Layout::whole("scale", {}, {0})),
            (std::vector<Move>{{1, 0, {{0, 0, 1}}}}));
}

TEST(Layout, OfNoNumbersMovesNone) {
  const Layout empty = Layout::whole("w", {3, 0}, {0});
  EXPECT_TRUE(empty.answers().empty());
  EXPECT_TRUE(empty.moves(Layout::whole("w", {3, 0}, {1})).empty());
}

TEST(Layout, HasAJsonForm) {
  const Layout layout("a\"b", {4, 2},
                      {{{{box({0, 0}, {4, 1})}, std::pair<int64_t, int64_t>{1, 3}}, {2, 0}}});
  EXPECT_EQ(layout.to_json(), R"({"tensor": "a\"b", "shape": [4, 2], "parts": [{"ranks": [0, 2], )"
                              R"("boxes": [[[0, 0], [4, 1]]], "range": [1, 3]}]})");
}

TEST(Layout, RefusesPartsThatAreNone) {
  const auto make = [](Part part, std::vector<Rank> ranks = {1}) {
    return plan_error([&] { Layout("w", {4, 2}, {{part, ranks}}); });
  };
  EXPECT_EQ(make({{box({0, 1}, {4, 2})}}),
            "tensor 'w' of shape [4, 2] on rank 1: the box [0:4, 1:3] is not inside of the tensor");
  EXPECT_EQ(make({{box({0}, {4})}}),
            "tensor 'w' of shape [4, 2] on rank 1: the box [0:4] is not inside of the tensor");
  EXPECT_EQ(make({{box({0, 0}, {2, 2}), box({1, 1}, {3, 1})}}),
            "tensor 'w' of shape [4, 2] on rank 1: the boxes [0:2, 0:2] and [1:4, 1:2] overlap");
  EXPECT_EQ(
      make({{box({0, 0}, {2, 2})}, std::pair<int64_t, int64_t>{2, 5}}, {1, 3}),
      "tensor 'w' of shape [4, 2] on ranks 1, 3: the range [2, 5) leaves the 4 numbers of its "
      "boxes");
  EXPECT_EQ(make({{box({0, 0}, {2, 2})}}, {1, 1}), "tensor 'w': rank 1 has two parts");
}

TEST(Layout, NamesNumbersThatNobodyHolds) {
  const Layout half("w", {4, 2}, {{{{box({0, 0}, {1, 2}), box({3, 0}, {1, 2})}}, {1}}});
  EXPECT_EQ(plan_error([&] { (void)half.answers(); }),
            "tensor 'w': no rank holds the numbers [2, 6)");
  EXPECT_EQ(plan_error([&] {
              (void)half.moves(Layout::whole("w", {4, 2}, {0}));
            }),
            "tensor 'w': rank 0 shall hold the numbers [2, 6), and no rank holds them now");
  EXPECT_EQ(plan_error([&] { (void)half.moves(Layout::whole("w", {8}, {0})); }),
            "tensor 'w' has the shape [4, 2], and shall have [8]");
}

/// The numbers of a part, one by one.
Numbers numbers_of(const std::vector<int64_t>& shape, const Part& part) {
  Numbers all;
  for (const Box& box : part.boxes) {
    std::vector<int64_t> at = box.begin;
    for (int64_t k = 0; k < box.numel(); ++k) {
      int64_t number = 0;
      for (size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + at[d];
      all.push_back(number);
      for (size_t d = shape.size(); d-- > 0;) {
        if (++at[d] < box.begin[d] + box.size[d]) break;
        at[d] = box.begin[d];
      }
    }
  }
  if (!part.range) return all;
  return {all.begin() + part.range->first, all.begin() + part.range->second};
}

/// A layout with what each rank holds, number by number.
struct Example {
  Layout layout;
  std::map<Rank, Numbers> held;
};

class Random {
 public:
  explicit Random(unsigned seed) : generator_(seed) {}
  int64_t up_to(int64_t most) {
    return std::uniform_int_distribution<int64_t>(0, most)(generator_);
  }

  std::vector<int64_t> shape() {
    std::vector<int64_t> shape(static_cast<size_t>(up_to(3)));
    for (int64_t& size : shape) size = 1 + up_to(5);
    return shape;
  }

  /// Each dimension cut at one or two places, and some of the boxes that this makes, in any order.
  Part part(const std::vector<int64_t>& shape) {
    std::vector<Box> boxes{{}};
    for (const int64_t size : shape) {
      std::set<int64_t> cuts{0, up_to(size), up_to(size), size};
      std::vector<Box> longer;
      for (const Box& box : boxes) {
        for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
          longer.push_back(box);
          longer.back().begin.push_back(*cut);
          longer.back().size.push_back(*std::next(cut) - *cut);
        }
      }
      boxes = std::move(longer);
    }
    std::ranges::shuffle(boxes, generator_);
    if (up_to(2) > 0) boxes.resize(static_cast<size_t>(up_to(static_cast<int64_t>(boxes.size()))));
    Part part{std::move(boxes)};
    if (up_to(1) == 0) {
      const int64_t a = up_to(part.numel()), b = up_to(part.numel());
      part.range = {std::min(a, b), std::max(a, b)};
    }
    return part;
  }

  Example example(const std::vector<int64_t>& shape) {
    std::vector<Rank> ranks(6);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::ranges::shuffle(ranks, generator_);
    std::vector<Layout::Holders> holders;
    std::map<Rank, Numbers> held;
    while (!ranks.empty()) {
      Layout::Holders& one = holders.emplace_back(Layout::Holders{part(shape), {}});
      for (int64_t count = 1 + up_to(2); count > 0 && !ranks.empty(); --count) {
        one.ranks.push_back(ranks.back());
        held[ranks.back()] = numbers_of(shape, one.part);
        ranks.pop_back();
      }
    }
    return {Layout("t", shape, holders), held};
  }

 private:
  std::mt19937 generator_;
};

bool is_held(const Example& example, int64_t number) {
  return std::ranges::any_of(
      example.held, [&](const auto& rank) { return std::ranges::count(rank.second, number) > 0; });
}

void check_answers(const Example& example) {
  std::map<int64_t, Rank> answered;
  for (const Answer& answer : example.layout.answers()) {
    for (const Run& run : answer.runs) {
      for (int64_t k = 0; k < run.count; ++k) {
        EXPECT_TRUE(answered.emplace(run.from + k, answer.rank).second);
        EXPECT_EQ(example.held.at(answer.rank).at(static_cast<size_t>(run.to + k)), run.from + k);
      }
    }
  }
  EXPECT_EQ(answered.size(), static_cast<size_t>(example.layout.numel()));
  for (const auto& [number, rank] : answered) {
    EXPECT_EQ(example.layout.holders(number).front(), rank);
  }
}

/// Does the moves on arrays of the numbers themselves.
void check_moves(const Example& from, const Example& to) {
  std::map<Rank, Numbers> arrived;
  for (const auto& [rank, numbers] : to.held) arrived[rank].assign(numbers.size(), -1);
  for (const Move& move : from.layout.moves(to.layout)) {
    EXPECT_GT(move.numel(), 0);
    for (const Run& run : move.runs) {
      for (int64_t k = 0; k < run.count; ++k) {
        const int64_t number = from.held.at(move.from).at(static_cast<size_t>(run.from + k));
        int64_t& target = arrived.at(move.to).at(static_cast<size_t>(run.to + k));
        EXPECT_EQ(target, -1) << "comes twice";
        target = number;
        const bool has_it = std::ranges::count(from.held.at(move.to), number) > 0;
        EXPECT_EQ(has_it, move.from == move.to) << "is sent to a rank that has it";
      }
    }
  }
  EXPECT_EQ(arrived, to.held);
}

TEST(Layout, EqualsWhatArraysOfNumbersSay) {
  int moved = 0, refused = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int64_t> shape = random.shape();
    const Example from = random.example(shape), to = random.example(shape);
    const int64_t numel = from.layout.numel();
    std::vector<int64_t> lost;
    for (int64_t number = 0; number < numel; ++number) {
      if (!is_held(from, number)) lost.push_back(number);
    }
    for (const auto& [rank, numbers] : from.held) {
      EXPECT_EQ(from.layout.numel(rank), static_cast<int64_t>(numbers.size()));
    }
    EXPECT_EQ(from.layout == to.layout, from.held == to.held);
    if (lost.empty()) {
      check_answers(from);
    } else {
      EXPECT_THROW((void)from.layout.answers(), PlanError);
    }
    if (std::ranges::any_of(lost, [&](int64_t number) { return is_held(to, number); })) {
      EXPECT_THROW((void)from.layout.moves(to.layout), PlanError);
      ++refused;
    } else {
      check_moves(from, to);
      ++moved;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 500);
  EXPECT_GT(refused, 100);
}

TEST(Layout, OfManyRanksWithEqualPartsIsOnePart) {
  // 1,024 ranks on a mesh of 8 places, each of which holds an eighth of the columns; were each pair
  // of ranks compared, 2,000 tensors would take 2,000 million comparisons.
  std::vector<Layout::Holders> holders(8);
  for (Rank rank = 0; rank < 1024; ++rank)
    holders[static_cast<size_t>(rank % 8)].ranks.push_back(rank);
  for (int64_t place = 0; place < 8; ++place) {
    holders[static_cast<size_t>(place)].part.boxes = {box({0, 4 * place}, {2, 4})};
  }
  for (int tensor = 0; tensor < 2000; ++tensor) {
    const Layout layout("w", {2, 32}, holders);
    EXPECT_EQ(layout.parts().size(), 8U);
    EXPECT_EQ(layout.moves(layout, 5).size(), 1U);
    EXPECT_EQ(layout.answers().size(), 8U);
  }
}

}  // namespace
}  // namespace rannc::plan
