#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace rannc::ir::sharding {

/// What a dimension counts. Dimensions with the same content must be cut alike.
using ContentId = uint32_t;

/// Contents of dimensions, by union-find. A content is a factor, which nothing has taken apart; or
/// a product of contents, the first changing slowest, as reshapes see it; or a sum of contents, one
/// behind the other, as splits and concatenations see it.
class Contents {
 public:
  enum class Form { factor, product, sum };

  ContentId fresh(int64_t size);
  /// Their product or sum. Parts of one element of a product and empty ones of a sum are left out.
  ContentId product(const std::vector<ContentId>& parts);
  ContentId sum(const std::vector<ContentId>& parts);

  /// Both dimensions count the same. Where what is known of them does not agree, both are torn: no
  /// factor of either may be cut.
  void unify(ContentId a, ContentId b);
  /// The same elements in the same order under other dimensions: the pairs of dimensions that agree
  /// are unified. False when from some dimension on nothing agrees; `agreed_a` and `agreed_b` say
  /// how many of each do.
  struct Agreed {
    size_t a = 0;
    size_t b = 0;
  };
  Agreed align(std::vector<ContentId> a, std::vector<ContentId> b);

  [[nodiscard]] int64_t size(ContentId id) const { return entries_[find(id)].size; }
  [[nodiscard]] Form form(ContentId id) const { return entries_[find(id)].form; }
  /// Of a product or a sum, each the root of its class.
  [[nodiscard]] std::vector<ContentId> parts(ContentId id) const;
  /// The name of its class.
  [[nodiscard]] ContentId find(ContentId id) const;
  /// Whether `part` is this content, or somewhere inside.
  [[nodiscard]] bool contains(ContentId id, ContentId part) const;
  /// All factors inside, in order; one may be there several times.
  [[nodiscard]] std::vector<ContentId> factors(ContentId id) const;
  /// Factors of torn contents.
  [[nodiscard]] std::vector<ContentId> torn() const;

 private:
  struct Entry {
    int64_t size = 0;
    ContentId parent = 0;
    Form form = Form::factor;
    std::vector<ContentId> parts;
    bool torn = false;
  };
  using Halves = std::optional<std::pair<ContentId, ContentId>>;

  /// Elements [0, at) and those behind, of which it then is the sum.
  Halves split(ContentId id, int64_t at);
  /// A slow part of `slow` elements, and a fast one, of which it then is the product.
  Halves refine(ContentId id, int64_t slow);
  std::vector<ContentId> flat(ContentId id, Form form) const;
  ContentId joined(const std::vector<ContentId>& parts, Form form);
  bool unify_products(ContentId a, ContentId b);
  bool unify_sums(ContentId a, ContentId b);

  std::vector<Entry> entries_;
};

}  // namespace rannc::ir::sharding
