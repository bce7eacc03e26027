#pragma once

#include <vector>

#include "ir/sharding/analysis.h"

namespace rannc::ir::sharding {

/// All places' stretches, as collectives take them.
[[nodiscard]] std::vector<AffineInt> flat(const std::vector<std::vector<Stretch>>& stretches);

/// Sizes and literals on one place of a group.
class LocalSizes {
 public:
  LocalSizes(const Graph& graph, const Analysis& analysis, int ways, int place)
      : graph_(graph), analysis_(analysis), ways_(ways), place_(place) {}

  /// Dimensions of a value that is cut along `factor`.
  [[nodiscard]] std::vector<AffineInt> of(ValueId value, ContentId factor) const;
  /// A value that is cut, with its dimensions and the places of its rows.
  [[nodiscard]] Value local_value(ValueId value, ContentId factor) const;
  /// What this place has of a dimension.
  [[nodiscard]] std::vector<Stretch> stretches(ValueId value, int dim, ContentId factor) const;
  /// The same where it is one stretch. Throws InternalError where it is more.
  [[nodiscard]] Stretch single(ValueId value, int dim, ContentId factor) const;
  /// The same of all places, and as collectives take them.
  [[nodiscard]] std::vector<std::vector<Stretch>> of_places(ValueId value, int dim,
                                                            ContentId factor) const;
  [[nodiscard]] std::vector<AffineInt> pieces(ValueId value, int dim, ContentId factor) const {
    return flat(of_places(value, dim, factor));
  }
  /// Sets the literals of `made`, a copy of `node` that runs on parts.
  void localise(Node& made, const Node& node, ContentId factor) const;

 private:
  [[nodiscard]] Stretch units(ContentId factor, int place) const;
  [[nodiscard]] int64_t size(ContentId content, ContentId factor, int place) const;
  [[nodiscard]] AffineInt local(ValueId value, int dim, ContentId factor) const;
  void collect(ContentId content, ContentId factor, int place, int64_t begin,
               std::vector<Stretch>& found) const;

  const Graph& graph_;
  const Analysis& analysis_;
  int ways_;
  int place_;
};

}  // namespace rannc::ir::sharding
