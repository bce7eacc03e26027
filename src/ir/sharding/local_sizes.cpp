#include "ir/sharding/local_sizes.h"

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::ir::sharding {

Stretch LocalSizes::units(ContentId factor, int place) const {
  const int64_t all = analysis_.units(factor);
  const int64_t least = all / ways_;
  const int64_t more = all % ways_;
  return {place * least + std::min<int64_t>(place, more), least + (place < more ? 1 : 0)};
}

int64_t LocalSizes::size(ContentId content, ContentId factor, int place) const {
  const Contents& contents = analysis_.dimensions().contents;
  if (contents.find(content) == factor) return units(factor, place).size;
  if (contents.form(content) == Contents::Form::factor) return contents.size(content);
  const bool product = contents.form(content) == Contents::Form::product;
  int64_t total = product ? 1 : 0;
  for (const ContentId part : contents.parts(content)) {
    const int64_t inner = size(part, factor, place);
    total = product ? total * inner : total + inner;
  }
  return total;
}

AffineInt LocalSizes::local(ValueId value, int dim, ContentId factor) const {
  const AffineInt before = graph_[value].dims[static_cast<size_t>(dim)];
  const ContentId content = analysis_.dimensions().of(value, dim);
  const int64_t now = size(content, factor, place_);
  if (now == before.at(kRows)) return before;
  return before.depends_on_rows() ? AffineInt{0, now / kRows} : AffineInt{now, 0};
}

std::vector<AffineInt> LocalSizes::of(ValueId value, ContentId factor) const {
  std::vector<AffineInt> dims = graph_[value].dims;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    dims[dim] = local(value, static_cast<int>(dim), factor);
  }
  return dims;
}

Value LocalSizes::local_value(ValueId id, ContentId factor) const {
  Value made = graph_[id];
  made.dims = of(id, factor);
  Rows& rows = made.rows;
  if (rows.kind != RowKind::apart || analysis_.dim(id, factor) != rows.dim) return made;
  const int64_t for_each_row = made.dims[static_cast<size_t>(rows.dim)].per_row;
  const bool behind_rows = !analysis_.stretches(id, factor);
  (behind_rows ? rows.inner : rows.outer) = for_each_row / (behind_rows ? rows.outer : rows.inner);
  return made;
}

void LocalSizes::collect(ContentId content, ContentId factor, int place, int64_t begin,
                         std::vector<Stretch>& found) const {
  const Contents& contents = analysis_.dimensions().contents;
  const auto add = [&](Stretch stretch) {
    if (!found.empty() && found.back().begin + found.back().size == stretch.begin) {
      found.back().size += stretch.size;
    } else {
      found.push_back(stretch);
    }
  };
  if (!contents.contains(content, factor)) return add({begin, contents.size(content)});
  if (contents.find(content) == factor) {
    const Stretch mine = units(factor, place);
    return add({begin + mine.begin, mine.size});
  }
  if (contents.form(content) == Contents::Form::sum) {
    for (const ContentId part : contents.parts(content)) {
      collect(part, factor, place, begin, found);
      begin += contents.size(part);
    }
    return;
  }
  // A product: the first part that has it is cut, each of what changes slower has the same pieces.
  int64_t slow = 1;
  int64_t fast = contents.size(content);
  for (const ContentId part : contents.parts(content)) {
    fast /= contents.size(part);
    if (!contents.contains(part, factor)) {
      slow *= contents.size(part);
      continue;
    }
    std::vector<Stretch> pieces;
    collect(part, factor, place, 0, pieces);
    RANNC_CHECK(slow < kRows, "a dimension with the rows in front of its factor has no pieces");
    for (int64_t index = 0; index < slow; ++index) {
      for (const Stretch& piece : pieces) {
        add({begin + (index * contents.size(part) + piece.begin) * fast, piece.size * fast});
      }
    }
    return;
  }
}

std::vector<Stretch> LocalSizes::stretches(ValueId value, int dim, ContentId factor) const {
  std::vector<Stretch> found;
  collect(analysis_.dimensions().of(value, dim), factor, place_, 0, found);
  return found;
}

Stretch LocalSizes::single(ValueId value, int dim, ContentId factor) const {
  const std::vector<Stretch> found = stretches(value, dim, factor);
  RANNC_CHECK(found.size() == 1, graph_[value].name + " is not cut into one stretch");
  return found.front();
}

std::vector<std::vector<Stretch>> LocalSizes::of_places(ValueId value, int dim,
                                                        ContentId factor) const {
  std::vector<std::vector<Stretch>> found(static_cast<size_t>(ways_));
  for (int place = 0; place < ways_; ++place) {
    collect(analysis_.dimensions().of(value, dim), factor, place, 0,
            found[static_cast<size_t>(place)]);
  }
  return found;
}

std::vector<AffineInt> flat(const std::vector<std::vector<Stretch>>& stretches) {
  std::vector<AffineInt> list;
  for (const auto& place : stretches) {
    list.push_back({static_cast<int64_t>(place.size()), 0});
    for (const Stretch& stretch : place) {
      list.push_back({stretch.begin, 0});
      list.push_back({stretch.size, 0});
    }
  }
  return list;
}

void LocalSizes::localise(Node& made, const Node& node, ContentId factor) const {
  static const std::set<std::string_view> kShapes{"view",   "reshape",      "_unsafe_view",
                                                  "expand", "broadcast_to", "_reshape_alias"};
  static const std::set<std::string_view> kSplits{"split", "split_with_sizes", "chunk",
                                                  "unsafe_split", "unsafe_chunk"};
  const std::string_view base = base_name(known_op(node));
  const ValueId result = node.outputs.front();
  if (kShapes.contains(base) && made.inputs.size() > 1) {
    made.inputs[1] = of(result, factor);
  } else if (base == "unflatten" || base == "flatten") {
    made.op = "aten::reshape";
    made.inputs = {made.inputs[0], of(result, factor)};
  } else if (kSplits.contains(base)) {
    const ArgumentsOnly no_rows;
    const auto* named = made.inputs.size() > 2 ? std::get_if<AffineInt>(&made.inputs[2]) : nullptr;
    const auto rank = static_cast<int64_t>(graph_[result].dims.size());
    const int64_t dim = named == nullptr ? 0 : (named->fixed + rank) % rank;
    std::vector<AffineInt> sizes;
    for (const ValueId output : node.outputs) {
      sizes.push_back(local(output, static_cast<int>(dim), factor));
    }
    made.op = "aten::split_with_sizes";
    made.inputs = {made.inputs[0], sizes, AffineInt{dim, 0}};
  } else if (base == "slice") {
    // Only tiles are cut: this one begins where those before it end.
    const auto rank = static_cast<int64_t>(graph_[result].dims.size());
    const auto* named = made.inputs.size() > 1 ? std::get_if<AffineInt>(&made.inputs[1]) : nullptr;
    const int64_t dim = named == nullptr ? 0 : (named->fixed + rank) % rank;
    const NodeId id = graph_[result].producer;
    if (!analysis_.is_tile(id)) return;
    int64_t begin = 0;
    for (const NodeId tile : analysis_.tiles().beside(id)) {
      const ValueId output = graph_[tile].outputs.front();
      const int64_t length = local(output, static_cast<int>(dim), factor).fixed;
      if (tile == id) {
        made.inputs[2] = AffineInt{begin, 0};
        made.inputs[3] = AffineInt{begin + length, 0};
        return;
      }
      begin += length;
    }
  } else if (base.find("conv") != std::string_view::npos) {
    const bool general = base == "convolution" || base == "_convolution";
    const size_t at = general ? 8 : 6;
    if (made.inputs.size() <= at) return;
    auto* groups = std::get_if<AffineInt>(&made.inputs[at]);
    if (groups == nullptr || groups->fixed == 1) return;
    // Cut by groups a place has the inputs of its own; cut inside of them, all of each.
    const auto from = std::get<ValueId>(node.inputs[0]);
    const auto weight = std::get<ValueId>(node.inputs[1]);
    const ContentId channels = analysis_.dimensions().of(from, 1);
    const auto inside = analysis_.dimensions().contents.factors(channels);
    const bool by_groups = analysis_.has(weight, factor) && analysis_.dim(weight, factor) == 0 &&
                           std::ranges::find(inside, factor) != inside.end();
    if (!by_groups) return;
    groups->fixed = groups->fixed * size(channels, factor, place_) /
                    analysis_.dimensions().contents.size(channels);
  }
}

}  // namespace rannc::ir::sharding
