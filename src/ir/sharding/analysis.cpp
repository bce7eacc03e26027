#include "ir/sharding/analysis.h"

#include <fmt/format.h>

#include <algorithm>

#include "rannc/ir/draws.h"

namespace rannc::ir::sharding {
namespace {

/// Factors of a content: those in all of its segments, and those in any.
struct Presence {
  std::set<ContentId> everywhere;
  std::set<ContentId> somewhere;
};

Presence presence(const Contents& contents, ContentId id) {
  if (contents.form(id) == Contents::Form::factor) {
    return {{contents.find(id)}, {contents.find(id)}};
  }
  const bool product = contents.form(id) == Contents::Form::product;
  Presence found;
  bool first = true;
  for (const ContentId part : contents.parts(id)) {
    const Presence inner = presence(contents, part);
    if (product || first) {
      for (const ContentId factor : inner.everywhere) {
        // One that is there twice is no factor of this dimension.
        if (product && found.somewhere.contains(factor)) {
          found.everywhere.erase(factor);
        } else {
          found.everywhere.insert(factor);
        }
      }
    } else {
      std::erase_if(found.everywhere,
                    [&](ContentId factor) { return !inner.everywhere.contains(factor); });
    }
    found.somewhere.insert(inner.somewhere.begin(), inner.somewhere.end());
    first = false;
  }
  return found;
}

/// Stretches of a content in one part of which `factor` is cut; 0 where it is in none.
int64_t count_stretches(const Contents& contents, ContentId id, ContentId factor) {
  if (contents.find(id) == factor) return 1;
  if (contents.form(id) == Contents::Form::factor) return 0;
  const bool product = contents.form(id) == Contents::Form::product;
  int64_t slow = 1;
  int64_t total = 0;
  for (const ContentId part : contents.parts(id)) {
    const int64_t inner = count_stretches(contents, part, factor);
    if (product && inner > 0) return slow * inner;
    slow *= product ? contents.size(part) : 1;
    total += inner;
  }
  return total;
}

}  // namespace

Analysis::Analysis(const Graph& graph) : dimensions_(graph), tiles_(graph) {
  join(graph);
  find_factors(graph);
  name_factors(graph);
}

void Analysis::join(const Graph& graph) {
  const ArgumentsOnly no_rows;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const NodeId id{index};
    const RowCall call(graph, id, no_rows);
    FactorCall answer(call, dimensions_);
    const bool known = graph[id].kind == OpKind::dispatcher;
    // Of what is drawn only dropout has a way to draw parts of the whole.
    const bool drawn = draws(graph[id]) && (call.base() != "dropout" || !graph[id].writes.empty());
    const FactorRule rule = known && !drawn ? find_factor_rule(call.base()) : nullptr;
    const auto& outputs = graph[id].outputs;
    if (rule != nullptr && !outputs.empty() && outputs.front().valid()) rule(answer);
    if (tiles_.has(id)) {
      const ValueId from = call.tensor(0);
      const int cut = call.dimension(1, call.rank(from), 0);
      std::vector<ContentId> segments;
      for (const NodeId tile : tiles_.beside(id)) {
        segments.push_back(dimensions_.of(graph[tile].outputs.front(), cut));
      }
      if (tiles_.beside(id).front() == id) {
        dimensions_.contents.unify(dimensions_.of(from, cut), dimensions_.contents.sum(segments));
      }
      answer.passes(from, cut);
      answer.passes(outputs.front(), cut);
    }
    marks_.push_back(answer.finish());
  }
}

void Analysis::find_factors(const Graph& graph) {
  const Contents& contents = dimensions_.contents;
  for (const ContentId factor : contents.torn()) {
    why_not_.emplace(factor, "its dimensions are taken apart in ways that do not agree");
  }
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    auto& found = in_.emplace_back();
    const auto& dims = dimensions_.of(ValueId{index});
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const Presence inside = presence(contents, dims[dim]);
      std::set<ContentId> seen;  // in their order, which names of factors rest on
      for (const ContentId factor : contents.factors(dims[dim])) {
        if (contents.size(factor) <= 1 || !seen.insert(factor).second) continue;
        found.push_back({factor, static_cast<int>(dim)});
        if (!inside.everywhere.contains(factor)) {
          why_not_.emplace(factor, fmt::format("only a part of dimension {} of '{}' has it", dim,
                                               graph.values[index].name));
        }
      }
    }
  }
  for (const auto& marks : marks_) {
    auto& roles = roles_.emplace_back();
    for (const auto& [content, role] : marks) {
      for (const ContentId factor : contents.factors(content)) roles[factor].insert(role);
    }
  }
  // A reduced factor that the result has would be two things at once.
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    for (auto& [factor, roles] : roles_[index]) {
      const auto in_result = [&](ValueId output) { return output.valid() && has(output, factor); };
      if (std::ranges::any_of(graph.nodes[index].outputs, in_result)) roles.insert(Role::whole);
    }
  }
}

std::map<ContentId, std::string> Analysis::ids(const Graph& graph, ValueId parameter) const {
  std::map<ContentId, std::string> found;
  std::map<int, int> count;
  for (const auto& [factor, dim] : in(parameter)) {
    if (units(factor) % kRows == 0) continue;
    const int number = ++count[dim];
    const std::string& name = graph[parameter].name;
    found.emplace(factor, number == 1 ? fmt::format("{}:{}", name, dim)
                                      : fmt::format("{}:{}.{}", name, dim, number));
  }
  return found;
}

void Analysis::name_factors(const Graph& graph) {
  std::map<ContentId, size_t> known;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    if (graph.values[index].kind != ValueKind::parameter) continue;
    for (const auto& [factor, dim] : in_[index]) {
      if (units(factor) % kRows == 0) continue;
      const auto [at, made] = known.try_emplace(factor, of_parameters_.size());
      if (made) {
        const std::string id = ids(graph, ValueId{index}).at(factor);
        const auto why_not = why_not_.find(factor);
        of_parameters_.push_back({factor,
                                  {.id = id,
                                   .units = units(factor),
                                   .parameters = {},
                                   .why_not = why_not == why_not_.end() ? "" : why_not->second}});
      }
      auto& parameters = of_parameters_[at->second].second.parameters;
      if (parameters.empty() || parameters.back() != ValueId{index}) {
        parameters.push_back(ValueId{index});
      }
    }
  }
}

namespace {

/// How often a content has `part` where that can be cut: in products only. Inside of a sum it is a
/// segment of something, which is no way to cut it: as if it were there twice.
int times(const Contents& contents, ContentId id, ContentId part) {
  if (contents.find(id) == part) return 1;
  if (!contents.contains(id, part)) return 0;
  if (contents.form(id) == Contents::Form::sum) return 2;
  int found = 0;
  for (const ContentId inner : contents.parts(id)) found += times(contents, inner, part);
  return found;
}

}  // namespace

ContentId Analysis::as_factor(ContentId content) {
  const Contents& contents = dimensions_.contents;
  const ContentId whole = contents.find(content);
  for (uint32_t index = 0; index < in_.size(); ++index) {
    std::erase_if(in_[index], [&](const Found& each) { return each.factor == whole; });
    const auto& dims = dimensions_.of(ValueId{index});
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const int found = times(contents, dims[dim], whole);
      in_[index].insert(in_[index].end(), static_cast<size_t>(found),
                        {whole, static_cast<int>(dim)});
    }
  }
  for (size_t node = 0; node < marks_.size(); ++node) {
    for (const auto& [marked, role] : marks_[node]) {
      if (contents.contains(marked, whole)) roles_[node][whole].insert(role);
      if (contents.find(marked) != whole && contents.contains(whole, marked)) {
        roles_[node][whole].insert(Role::whole);  // it is done to a part of each place's
      }
    }
  }
  return whole;
}

std::optional<int> Analysis::dim(ValueId value, ContentId factor) const {
  std::optional<int> found;
  for (const Found& each : in(value)) {
    if (each.factor != factor) continue;
    if (found) return std::nullopt;
    found = each.dim;
  }
  return found;
}

std::optional<int64_t> Analysis::stretches(ValueId value, ContentId factor) const {
  const int64_t count =
      count_stretches(dimensions_.contents, dimensions_.of(value, *dim(value, factor)), factor);
  return count < kRows ? std::optional(count) : std::nullopt;
}

bool Analysis::has(ValueId value, ContentId factor) const {
  return std::ranges::any_of(in(value), [&](const Found& each) { return each.factor == factor; });
}

bool Analysis::has_role(NodeId node, ContentId factor, Role role) const {
  const auto found = roles_[node.index].find(factor);
  return found != roles_[node.index].end() && found->second.contains(role);
}

bool Analysis::can_run(NodeId node, ContentId factor) const {
  return !has_role(node, factor, Role::whole);
}

}  // namespace rannc::ir::sharding
