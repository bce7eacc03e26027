#include "ir/sharding/contents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace rannc::ir::sharding {
namespace {

using Form = Contents::Form;

TEST(DimensionContents, FactorsThatCountTheSameAreOne) {
  Contents contents;
  const ContentId a = contents.fresh(4);
  const ContentId b = contents.fresh(4);
  contents.unify(a, b);
  EXPECT_EQ(contents.find(a), contents.find(b));
  EXPECT_TRUE(contents.torn().empty());
}

TEST(DimensionContents, DifferentSizesAreTorn) {
  Contents contents;
  const ContentId a = contents.fresh(4);
  const ContentId b = contents.fresh(6);
  contents.unify(a, b);
  EXPECT_EQ(contents.torn(), (std::vector<ContentId>{a, b}));
}

TEST(DimensionContents, AReshapeTakesADimensionApart) {
  Contents contents;
  const ContentId width = contents.fresh(12);
  const ContentId heads = contents.fresh(3);
  const ContentId inner = contents.fresh(4);
  const Contents::Agreed agreed = contents.align({width}, {heads, inner});
  EXPECT_EQ(agreed.a, 1U);
  EXPECT_EQ(agreed.b, 2U);
  EXPECT_EQ(contents.form(width), Form::product);
  EXPECT_EQ(contents.factors(width), (std::vector<ContentId>{heads, inner}));
}

TEST(DimensionContents, AReshapeAgreesUntilSizesHaveNoCommonDivisor) {
  Contents contents;
  const ContentId first = contents.fresh(5);
  const ContentId second = contents.fresh(6);
  const ContentId third = contents.fresh(4);
  // [5, 6, 4] to [5, 8, 3]: behind 5, neither of 6 and 8 divides the other.
  const ContentId same = contents.fresh(5);
  const Contents::Agreed agreed =
      contents.align({first, second, third}, {same, contents.fresh(8), contents.fresh(3)});
  EXPECT_EQ(agreed.a, 1U);
  EXPECT_EQ(agreed.b, 1U);
  EXPECT_EQ(contents.find(first), contents.find(same));
}

TEST(DimensionContents, QueriesKeysAndValuesSideBySideHaveTheSameHeads) {
  Contents contents;
  const ContentId fused = contents.fresh(24);
  std::vector<ContentId> thirds;
  for (int each = 0; each < 3; ++each) thirds.push_back(contents.fresh(8));
  contents.unify(fused, contents.sum(thirds));
  const ContentId heads = contents.fresh(2);
  for (const ContentId third : thirds) contents.align({third}, {heads, contents.fresh(4)});

  EXPECT_EQ(contents.form(fused), Form::sum);
  const std::vector<ContentId> found = contents.factors(fused);
  EXPECT_EQ(std::ranges::count(found, contents.find(heads)), 3);
  EXPECT_TRUE(contents.torn().empty());
}

TEST(DimensionContents, SegmentsThatAreCutElsewhereAreSplit) {
  Contents contents;
  const ContentId whole = contents.fresh(10);
  contents.unify(whole, contents.sum({contents.fresh(4), contents.fresh(6)}));
  const ContentId again = contents.fresh(10);
  contents.unify(again, contents.sum({contents.fresh(7), contents.fresh(3)}));
  contents.unify(whole, again);
  // 4 and 6, and 7 and 3: pieces of 4, 3 and 3.
  std::vector<int64_t> sizes;
  for (const ContentId factor : contents.factors(whole)) sizes.push_back(contents.size(factor));
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 3, 3}));
}

/// Tensors made from each other at random, and which of their elements a place has when a factor is
/// cut: an array of flags for each tensor, computed from the contents of its dimensions alone.
class RandomTensors {
 public:
  explicit RandomTensors(uint32_t seed) : random_(seed) {
    add({2 * below(3) + 2, 3 * below(2) + 3, 4});
    for (int step = 0; step < 12; ++step) {
      const size_t from = random_() % tensors_.size();
      if (random_() % 2 == 0) {
        reshape(from);
      } else {
        split(from);
      }
    }
  }

  /// Whether each tensor has the elements that what it was made from has in the same places.
  /// Counts what it has compared.
  void check(int& compared) {
    std::set<ContentId> factors;
    for (const Tensor& tensor : tensors_) {
      for (const ContentId dim : tensor) {
        for (const ContentId factor : contents_.factors(dim)) factors.insert(factor);
      }
    }
    for (const ContentId factor : contents_.torn()) factors.erase(factor);
    for (const ContentId dim : needed_whole_) {
      for (const ContentId factor : contents_.factors(dim)) factors.erase(factor);
    }
    for (const ContentId factor : factors) {
      if (contents_.size(factor) < 2) continue;
      cut_ = factor;
      units_ = contents_.size(factor) / 2;
      for (const auto& [from, to] : reshapes_) {
        ASSERT_EQ(elements(tensors_[from]), elements(tensors_[to]));
        ++compared;
      }
      for (const Split& each : splits_) {
        const Flags whole = elements(tensors_[each.from]);
        ASSERT_EQ(slice(whole, each), elements(tensors_[each.to]));
        ++compared;
      }
    }
  }

 private:
  using Tensor = std::vector<ContentId>;
  using Flags = std::vector<bool>;
  struct Split {
    size_t from, to, dim;
    int64_t begin;
  };

  int64_t below(uint32_t limit) { return random_() % limit; }

  size_t add(const std::vector<int64_t>& sizes) {
    Tensor& made = tensors_.emplace_back();
    for (const int64_t size : sizes) made.push_back(contents_.fresh(size));
    return tensors_.size() - 1;
  }

  /// Neighbours become one, or a dimension becomes two.
  void reshape(size_t from) {
    std::vector<int64_t> sizes;
    for (const ContentId dim : tensors_[from]) sizes.push_back(contents_.size(dim));
    const auto at = static_cast<int64_t>(random_() % sizes.size());
    if (sizes.size() > 1 && random_() % 2 == 0) {
      const size_t first = static_cast<size_t>(at) % (sizes.size() - 1);
      sizes[first] *= sizes[first + 1];
      sizes.erase(sizes.begin() + static_cast<int64_t>(first) + 1);
    } else {
      const int64_t divisor = 2 + below(3);
      const int64_t size = sizes[static_cast<size_t>(at)];
      if (size % divisor != 0) return;
      sizes[static_cast<size_t>(at)] = divisor;
      sizes.insert(sizes.begin() + at + 1, size / divisor);
    }
    const size_t to = add(sizes);
    const Contents::Agreed agreed = contents_.align(tensors_[from], tensors_[to]);
    const auto need = [&](size_t tensor, size_t begin) {
      for (size_t dim = begin; dim < tensors_[tensor].size(); ++dim) {
        needed_whole_.push_back(tensors_[tensor][dim]);
      }
    };
    need(from, agreed.a);
    need(to, agreed.b);
    reshapes_.emplace_back(from, to);
  }

  void split(size_t from) {
    const size_t dim = random_() % tensors_[from].size();
    std::vector<int64_t> sizes;
    for (const ContentId each : tensors_[from]) sizes.push_back(contents_.size(each));
    const int64_t all = sizes[dim];
    if (all < 2) return;
    const int64_t first = 1 + below(static_cast<uint32_t>(all - 1));
    Tensor segments;
    for (const auto& [begin, size] :
         {std::pair{int64_t{0}, first}, std::pair{first, all - first}}) {
      sizes[dim] = size;
      const size_t to = add(sizes);
      for (size_t each = 0; each < sizes.size(); ++each) {
        if (each != dim) contents_.unify(tensors_[from][each], tensors_[to][each]);
      }
      segments.push_back(tensors_[to][dim]);
      splits_.push_back({from, to, dim, begin});
    }
    contents_.unify(tensors_[from][dim], contents_.sum(segments));
  }

  [[nodiscard]] Flags elements(ContentId content) const {
    if (contents_.form(content) == Form::factor) {
      Flags flags(static_cast<size_t>(contents_.size(content)), true);
      if (contents_.find(content) == cut_) {
        std::fill(flags.begin() + units_, flags.end(), false);
      }
      return flags;
    }
    Flags flags;
    if (contents_.form(content) == Form::product) return elements(contents_.parts(content));
    for (const ContentId part : contents_.parts(content)) {
      const Flags inner = elements(part);
      flags.insert(flags.end(), inner.begin(), inner.end());
    }
    return flags;
  }

  /// Of dimensions side by side, the first changing slowest.
  [[nodiscard]] Flags elements(const Tensor& dims) const {
    Flags flags{true};
    for (const ContentId dim : dims) {
      const Flags inner = elements(dim);
      Flags both;
      for (const bool outer : flags) {
        for (const bool each : inner) both.push_back(outer && each);
      }
      flags = both;
    }
    return flags;
  }

  [[nodiscard]] Flags slice(const Flags& whole, const Split& split) const {
    int64_t inner = 1;
    const Tensor& from = tensors_[split.from];
    for (size_t dim = split.dim + 1; dim < from.size(); ++dim) inner *= contents_.size(from[dim]);
    const int64_t all = contents_.size(from[split.dim]);
    const int64_t size = contents_.size(tensors_[split.to][split.dim]);
    Flags part;
    for (size_t index = 0; index < whole.size(); ++index) {
      const int64_t at = static_cast<int64_t>(index) / inner % all;
      if (at >= split.begin && at < split.begin + size) part.push_back(whole[index]);
    }
    return part;
  }

  std::mt19937 random_;
  Contents contents_;
  std::vector<Tensor> tensors_;
  std::vector<std::pair<size_t, size_t>> reshapes_;
  std::vector<Split> splits_;
  std::vector<ContentId> needed_whole_;
  ContentId cut_ = 0;
  int64_t units_ = 0;
};

TEST(DimensionContents, ReshapesAndSplitsKeepWhichElementsAPlaceHas) {
  int compared = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    RandomTensors(seed).check(compared);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(compared, 5000);
}

}  // namespace
}  // namespace rannc::ir::sharding
