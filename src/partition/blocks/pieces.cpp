#include "partition/blocks/pieces.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace rannc::partition {
namespace {

using Adjacency = std::vector<std::vector<uint32_t>>;

/// Contracted node of each node: one per group, one per node without a group, numbered by their
/// first node.
std::vector<uint32_t> contract_groups(const cost::GraphProfile& profile, uint32_t* count) {
  std::unordered_map<std::string_view, uint32_t> groups;
  std::vector<uint32_t> part(profile.nodes.size());
  *count = 0;
  for (size_t node = 0; node < part.size(); ++node) {
    const std::string& group = profile.nodes[node].group;
    if (group.empty()) {
      part[node] = (*count)++;
      continue;
    }
    const auto [place, added] = groups.emplace(group, *count);
    if (added) ++*count;
    part[node] = place->second;
  }
  return part;
}

/// For each part, the parts that read its values; each once, without itself.
Adjacency successors(const cost::GraphProfile& profile, const std::vector<uint32_t>& part,
                     uint32_t count) {
  Adjacency next(count);
  for (size_t node = 0; node < part.size(); ++node) {
    for (const cost::ProfileUse& use : profile.nodes[node].inputs) {
      if (!use.is_input && part[use.node] != part[node]) next[part[use.node]].push_back(part[node]);
    }
  }
  for (std::vector<uint32_t>& list : next) {
    std::ranges::sort(list);
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return next;
}

/// Strongly connected component of each vertex (Tarjan 1972), with a stack of our own because a
/// chain of 200,000 nodes would overflow the thread's.
std::vector<uint32_t> strong_components(const Adjacency& next, uint32_t* count) {
  constexpr uint32_t kUnseen = UINT32_MAX;
  std::vector<uint32_t> order(next.size(), kUnseen), low(next.size()),
      component(next.size(), kUnseen);
  std::vector<uint32_t> open;                      // visited, component not yet known
  std::vector<std::pair<uint32_t, size_t>> calls;  // vertex, next edge to follow
  uint32_t clock = 0;
  *count = 0;
  const auto enter = [&](uint32_t vertex) {
    order[vertex] = low[vertex] = clock++;
    open.push_back(vertex);
    calls.emplace_back(vertex, 0);
  };
  for (uint32_t root = 0; root < next.size(); ++root) {
    if (order[root] != kUnseen) continue;
    enter(root);
    while (!calls.empty()) {
      const uint32_t vertex = calls.back().first;
      if (calls.back().second < next[vertex].size()) {
        const uint32_t target = next[vertex][calls.back().second++];
        if (order[target] == kUnseen) {
          enter(target);
        } else if (component[target] == kUnseen) {
          low[vertex] = std::min(low[vertex], order[target]);
        }
        continue;
      }
      calls.pop_back();
      if (!calls.empty()) {
        uint32_t& above = low[calls.back().first];
        above = std::min(above, low[vertex]);
      }
      if (low[vertex] != order[vertex]) continue;
      uint32_t member;
      do {
        member = open.back();
        open.pop_back();
        component[member] = *count;
      } while (member != vertex);
      ++*count;
    }
  }
  return component;
}

}  // namespace

std::vector<Piece> atomic_pieces(const cost::GraphProfile& profile) {
  uint32_t groups = 0, count = 0;
  std::vector<uint32_t> part = contract_groups(profile, &groups);
  const std::vector<uint32_t> component =
      strong_components(successors(profile, part, groups), &count);
  for (uint32_t& p : part) p = component[p];

  std::vector<Piece> members(count);
  for (uint32_t node = 0; node < part.size(); ++node) members[part[node]].push_back(node);

  // Kahn's algorithm; the ready piece with the smallest first node goes first.
  const Adjacency next = successors(profile, part, count);
  std::vector<uint32_t> waits_for(count, 0);
  for (const std::vector<uint32_t>& list : next) {
    for (uint32_t target : list) ++waits_for[target];
  }
  using Entry = std::pair<uint32_t, uint32_t>;  // first node, piece
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (uint32_t piece = 0; piece < count; ++piece) {
    if (waits_for[piece] == 0) ready.emplace(members[piece].front(), piece);
  }
  std::vector<Piece> pieces;
  pieces.reserve(count);
  while (!ready.empty()) {
    const uint32_t piece = ready.top().second;
    ready.pop();
    for (uint32_t target : next[piece]) {
      if (--waits_for[target] == 0) ready.emplace(members[target].front(), target);
    }
    pieces.push_back(std::move(members[piece]));
  }
  return pieces;
}

}  // namespace rannc::partition
