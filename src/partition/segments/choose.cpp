#include "partition/segments/choose.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace rannc::partition {
namespace {

/// Borders that the programme chooses from: those with the fewest bytes across them.
/// tuned by: a bound on time and memory, which was not varied: graphs of the tests have fewer.
/// without it: the programme takes the square of the nodes, for each bound.
constexpr size_t kMostCuts = 512;

/// The smallest bound on what a segment saves, as a part of what all nodes save.
/// tuned by: a bound on time, which was not varied: with fewer bytes a segment is a node or two.
/// without it: the programme runs for bounds below which nothing changes.
constexpr int kMostParts = 256;

constexpr double kNever = std::numeric_limits<double>::infinity();

class Chooser {
 public:
  explicit Chooser(const cost::GraphProfile& profile)
      : profile_(profile),
        nodes_(profile.nodes.size()),
        last_user_(nodes_),
        stores_(nodes_),
        crossing_(nodes_ + 1) {
    for (uint32_t node = 0; node < nodes_; ++node) {
      last_user_[node].assign(profile.nodes[node].outputs.size(), node);
    }
    for (uint32_t node = 0; node < nodes_; ++node) {
      for (const cost::ProfileUse& use : profile.nodes[node].inputs) {
        if (!use.is_input) last_user_[use.node][use.output] = node;
      }
    }
    for (size_t storage = 0; storage < profile.saved.size(); ++storage) {
      for (const uint32_t node : profile.saved[storage].nodes) stores_[node].push_back(storage);
    }
    find_borders();
    find_costs();
  }

  [[nodiscard]] std::vector<NodeRange> choose(double in_flight, size_t at_least) const {
    const double all = saved_.front().back();
    double least = kNever;
    std::vector<size_t> best;
    for (int parts = 1; parts <= kMostParts; parts += std::max(1, parts / 4)) {
      const auto [taken, cuts] = cheapest(all / parts);
      if (cuts.size() <= at_least) continue;  // both ends are among them
      double largest = 0;
      for (size_t k = 0; k + 1 < cuts.size(); ++k) {
        largest = std::max(largest, saved_[cuts[k]][cuts[k + 1]]);
      }
      const double sum = in_flight * taken + largest;
      if (sum >= least) continue;
      least = sum;
      best = cuts;
    }
    std::vector<NodeRange> segments;
    for (size_t k = 0; k + 1 < best.size(); ++k) {
      segments.push_back({borders_[best[k]], borders_[best[k + 1]]});
    }
    return segments;
  }

 private:
  [[nodiscard]] double most(const std::vector<double>& costs) const {
    return costs.empty() ? 0 : costs.back();
  }
  [[nodiscard]] double bytes(uint32_t node, size_t output) const {
    const auto rows = static_cast<double>(profile_.rows.back());
    return profile_.nodes[node].outputs[output].size.at(rows);
  }

  /// Places between nodes, in front of the node of that number.
  void find_borders() {
    std::vector<int> torn(nodes_ + 1);
    std::unordered_map<std::string_view, std::pair<uint32_t, uint32_t>> groups;
    for (uint32_t node = 0; node < nodes_; ++node) {
      const std::string& group = profile_.nodes[node].group;
      if (!group.empty()) groups.try_emplace(group, node, node).first->second.second = node;
      for (size_t output = 0; output < last_user_[node].size(); ++output) {
        crossing_[node + 1] += bytes(node, output);
        if (last_user_[node][output] + 1 <= nodes_) {
          crossing_[last_user_[node][output] + 1] -= bytes(node, output);
        }
      }
    }
    for (const auto& [group, range] : groups) {
      ++torn[range.first + 1];
      --torn[range.second + 1];
    }
    std::partial_sum(torn.begin(), torn.end(), torn.begin());
    std::partial_sum(crossing_.begin(), crossing_.end(), crossing_.begin());
    std::vector<uint32_t> inner;
    for (uint32_t border = 1; border < nodes_; ++border) {
      if (torn[border] == 0) inner.push_back(border);
    }
    std::ranges::stable_sort(inner, {}, [&](uint32_t border) { return crossing_[border]; });
    inner.resize(std::min(inner.size(), kMostCuts));
    borders_ = std::move(inner);
    borders_.push_back(0);
    borders_.push_back(static_cast<uint32_t>(nodes_));
    std::ranges::sort(borders_);
  }

  /// [border][later border] what the nodes between them save, and what others take of them.
  void find_costs() {
    const size_t count = borders_.size();
    saved_.assign(count, std::vector<double>(count, 0));
    given_.assign(count, std::vector<double>(count, 0));
    std::vector<size_t> seen(profile_.saved.size(), 0);
    for (size_t end = 1; end < count; ++end) {
      double saved = 0, given = 0;
      for (size_t begin = end; begin-- > 0;) {
        for (uint32_t node = borders_[begin]; node < borders_[begin + 1]; ++node) {
          saved += most(profile_.nodes[node].saved_bytes);
          for (const size_t storage : stores_[node]) {
            if (seen[storage] == end) continue;
            seen[storage] = end;
            saved += most(profile_.saved[storage].bytes);
          }
          for (size_t output = 0; output < last_user_[node].size(); ++output) {
            if (last_user_[node][output] >= borders_[end]) given += bytes(node, output);
          }
        }
        saved_[begin][end] = saved;
        given_[begin][end] = given;
      }
    }
  }

  /// The borders with the least that segments take, none of which saves more than `bound`.
  [[nodiscard]] std::pair<double, std::vector<size_t>> cheapest(double bound) const {
    const size_t count = borders_.size();
    std::vector<double> least(count, kNever);
    std::vector<size_t> before(count, 0);
    least[0] = 0;
    for (size_t end = 1; end < count; ++end) {
      for (size_t begin = end; begin-- > 0;) {
        // A piece that cannot be cut may save more.
        if (saved_[begin][end] > bound && begin + 1 < end) break;
        const double sum = least[begin] + given_[begin][end];
        if (sum >= least[end]) continue;
        least[end] = sum;
        before[end] = begin;
      }
    }
    std::vector<size_t> cuts{count - 1};
    while (cuts.back() > 0) cuts.push_back(before[cuts.back()]);
    std::ranges::reverse(cuts);
    return {least.back(), std::move(cuts)};
  }

  const cost::GraphProfile& profile_;
  const size_t nodes_;
  std::vector<std::vector<uint32_t>> last_user_;  // [node][output]; itself where nobody uses it
  std::vector<std::vector<size_t>> stores_;       // [node] storages that it saves
  std::vector<double> crossing_;                  // [border]
  std::vector<uint32_t> borders_;                 // ascending, with both ends
  std::vector<std::vector<double>> saved_, given_;
};

}  // namespace

std::vector<NodeRange> choose_segments(const cost::GraphProfile& profile, double in_flight,
                                       size_t at_least) {
  return Chooser(profile).choose(in_flight, at_least);
}

}  // namespace rannc::partition
