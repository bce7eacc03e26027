#include "rannc/ir/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/sharding/decisions.h"
#include "ir/sharding/graph_of_place.h"
#include "ir/sharding/local_sizes.h"
#include "ir/sharding/products_of_tokens.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

using sharding::Analysis;
using sharding::ContentId;
using sharding::graph_of_place;
using sharding::LocalSizes;

/// Units that a factor has at least. What looks at memory needs dimensions in the order in which
/// the whole model has them, and a dimension of one element has no place in an order.
int64_t least_units(const Graph& graph, int ways) {
  const bool looks = std::ranges::any_of(graph.nodes, [](const Node& node) {
    return node.kind == OpKind::dispatcher && base_name(known_op(node)) == "as_strided";
  });
  return looks ? 2 * int64_t{ways} : ways;
}

/// Any parameter may name a factor that it has: the first one may be in no part of the model at
/// hand.
std::set<ContentId> by_id(const Graph& graph, const Analysis& analysis,
                          const std::vector<std::string>& ids, int ways) {
  std::map<std::string, ContentId> named;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    if (graph.values[index].kind != ValueKind::parameter) continue;
    for (const auto& [factor, id] : analysis.ids(graph, ValueId{index})) named.emplace(id, factor);
  }
  std::set<ContentId> cut;
  for (const std::string& id : ids) {
    const auto known = named.find(id);
    if (known == named.end()) {
      throw ConfigError(fmt::format("there is no factor '{}' in this graph", id));
    }
    const auto found = std::ranges::find_if(
        analysis.of_parameters(), [&](const auto& each) { return each.first == known->second; });
    const auto& [factor, about] = *found;
    if (!about.why_not.empty()) {
      throw ConfigError(fmt::format("factor '{}' cannot be cut: {}", id, about.why_not));
    }
    if (about.units < least_units(graph, ways)) {
      throw ConfigError(
          fmt::format("factor '{}' has {} units, too few for {} ways", id, about.units, ways));
    }
    cut.insert(factor);
  }
  return cut;
}

}  // namespace

std::vector<Factor> factors(const Graph& graph) {
  const Analysis analysis(graph);
  std::vector<Factor> found;
  for (const auto& [factor, about] : analysis.of_parameters()) found.push_back(about);
  return found;
}

namespace {

std::vector<std::string> choose(const Graph& graph, const Analysis& analysis, int ways) {
  struct Candidate {
    ContentId factor;
    const Factor* about;
    double bytes_for_each;  ///< of collectives for a byte of parameters that it cuts
  };
  std::vector<Candidate> candidates;
  const auto sent = [&](const std::set<ContentId>& cut) {
    return all_traffic(graph_of_place(graph, analysis, {cut}, ways, 0).graph, ways, 1).bytes;
  };
  for (const auto& [factor, about] : analysis.of_parameters()) {
    if (!about.why_not.empty() || about.units < least_units(graph, ways)) continue;
    int64_t bytes = 0;
    for (const ValueId parameter : about.parameters) {
      if (analysis.dim(parameter, factor)) bytes += graph[parameter].bytes(0);
    }
    const auto cost = static_cast<double>(sent({factor}));
    if (bytes > 0) candidates.push_back({factor, &about, cost / static_cast<double>(bytes)});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::bytes_for_each);
  std::set<ValueId> taken;
  std::vector<std::string> chosen;
  for (const Candidate& candidate : candidates) {
    const auto& parameters = candidate.about->parameters;
    if (std::ranges::any_of(parameters, [&](ValueId id) {
          return taken.contains(id) || !analysis.dim(id, candidate.factor);
        })) {
      continue;
    }
    taken.insert(parameters.begin(), parameters.end());
    chosen.push_back(candidate.about->id);
  }
  return chosen;
}

}  // namespace

std::vector<std::string> choose_factors(const Graph& graph, int ways) {
  return choose(graph, Analysis(graph), ways);
}

namespace {

bool is_state(const Value& value) {
  return value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
}

/// Factors, by id, that state of the graph is cut along already.
std::vector<std::string> of_layouts(const Graph& graph, const Analysis& analysis, int ways,
                                    const Layouts& held) {
  const LocalSizes sizes(graph, analysis, ways, 0);
  std::vector<std::string> found;
  for (const auto& [factor, about] : analysis.of_parameters()) {
    if (!about.why_not.empty() || about.units < least_units(graph, ways)) continue;
    const bool cut = std::ranges::any_of(about.parameters, [&](ValueId id) {
      const auto layout = held.find(graph[id].name);
      const std::optional<int> dim = analysis.dim(id, factor);
      return layout != held.end() && dim == layout->second.dim &&
             sizes.of_places(id, *dim, factor) == layout->second.stretches;
    });
    if (cut) found.push_back(about.id);
  }
  return found;
}

/// State that is held otherwise than a cut along these factors would have it.
std::set<ValueId> held_otherwise(const Graph& graph, const Analysis& analysis,
                                 const std::set<ContentId>& cut, int ways, const Layouts& held) {
  const LocalSizes sizes(graph, analysis, ways, 0);
  std::set<ValueId> found;
  for (uint32_t index = 0; index < graph.values.size(); ++index) {
    const ValueId id{index};
    const auto layout = is_state(graph[id]) ? held.find(graph[id].name) : held.end();
    if (layout == held.end()) continue;
    for (const Analysis::Found& each : analysis.in(id)) {
      const std::optional<int> dim = analysis.dim(id, each.factor);
      if (!cut.contains(each.factor) || !dim) continue;
      const bool alike = dim == layout->second.dim &&
                         sizes.of_places(id, *dim, each.factor) == layout->second.stretches;
      if (!alike) found.insert(id);
    }
  }
  return found;
}

/// Of each sum of products the dimension in front of its columns that all places can have parts of:
/// the sequence.
std::set<ContentId> find_sequences(const Graph& graph, Analysis& analysis,
                                   const std::set<ContentId>& cut,
                                   const std::set<ValueId>& otherwise, int ways) {
  const sharding::Decisions decisions(graph, analysis, cut, otherwise);
  const sharding::Contents& contents = analysis.dimensions().contents;
  std::set<ContentId> found;
  const auto fits = [&](ContentId content) {
    const bool overlaps = std::ranges::any_of(found, [&](ContentId other) {
      return contents.contains(content, other) || contents.contains(other, content);
    });
    const bool weights = std::ranges::any_of(
        cut, [&](ContentId factor) { return contents.contains(content, factor); });
    const int64_t size = contents.size(content);
    return !overlaps && !weights && size >= ways && size % sharding::kRows != 0;
  };
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const std::string_view base = base_name(known_op(graph.nodes[index]));
    const bool conv = base.find("conv") != std::string_view::npos;
    if (conv || !decisions.gives_sum(NodeId{index})) continue;
    const auto& dims = analysis.dimensions().of(graph.nodes[index].outputs.front());
    for (size_t dim = dims.size(); dim-- > 0;) {
      const bool known = std::ranges::any_of(
          found, [&](ContentId other) { return contents.find(dims[dim]) == other; });
      if (known) break;
      if (dim + 1 == dims.size() || !fits(dims[dim])) continue;
      found.insert(contents.find(dims[dim]));
      break;
    }
  }
  std::set<ContentId> sequences;
  for (const ContentId content : found) sequences.insert(analysis.as_factor(content));
  return sequences;
}

}  // namespace

ShardedGraph shard(const Graph& model, int ways, int place,
                   const std::optional<std::vector<std::string>>& chosen, const Layouts& held,
                   bool sequence) {
  const Graph graph = sequence ? sharding::products_of_tokens(model) : model;
  Analysis analysis(graph);
  const bool settled = !held.empty() && std::ranges::all_of(graph.values, [&](const Value& value) {
    return !is_state(value) || held.contains(value.name);
  });
  const std::vector<std::string> ids = settled  ? of_layouts(graph, analysis, ways, held)
                                       : chosen ? *chosen
                                                : choose(graph, analysis, ways);
  const std::set<ContentId> factors = by_id(graph, analysis, ids, ways);
  const std::set<ValueId> otherwise = held_otherwise(graph, analysis, factors, ways, held);
  const std::set<ContentId> sequences =
      sequence ? find_sequences(graph, analysis, factors, otherwise, ways) : std::set<ContentId>();
  ShardedGraph made =
      graph_of_place(graph, analysis, {factors, held, otherwise, sequences}, ways, place);
  made.factors = ids;
  return made;
}

}  // namespace rannc::ir
