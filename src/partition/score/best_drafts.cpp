#include "partition/score/best_drafts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace rannc::partition {
namespace {

double rounded_ns(const Scored& scored) {
  const double ns = scored.figures.iteration_ns;
  return std::isfinite(ns) ? std::round(ns) : ns;
}

std::vector<int> replicas(const Draft& draft) {
  std::vector<int> counts;
  for (const Ranks& ranks : draft.groups) counts.push_back(size(ranks));
  return counts;
}

auto arrangement(const Draft& draft) {
  return std::tuple(draft.schedule, draft.interleave, draft.micro_batches, draft.groups.size());
}

}  // namespace

bool better(const Scored& a, const Scored& b) {
  const auto key = [](const Scored& s) {
    // Where none fits, the one that comes closest is the best.
    return std::tuple(!s.figures.fits, s.figures.fits ? rounded_ns(s) : s.figures.peak_bytes,
                      s.draft.stages(), s.draft.micro_batches, s.draft.schedule);
  };
  if (key(a) != key(b)) return key(a) < key(b);
  return std::tie(a.draft.stage_of, a.draft.groups, a.draft.recompute) <
         std::tie(b.draft.stage_of, b.draft.groups, b.draft.recompute);
}

double Best::iteration_ns() const {
  return top_.empty() ? std::numeric_limits<double>::infinity() : top_.front().figures.iteration_ns;
}

void Best::add_to_top(const Scored& scored) {
  const auto same = std::ranges::find_if(top_, [&](const Scored& other) {
    return arrangement(other.draft) == arrangement(scored.draft);
  });
  if (same != top_.end()) {
    if (!better(scored, *same)) return;
    top_.erase(same);
  } else if (top_.size() == keep_ && !better(scored, top_.back())) {
    return;
  }
  top_.insert(std::ranges::upper_bound(top_, scored, better), scored);
  if (top_.size() > keep_) top_.pop_back();
}

std::vector<std::string> kinds_of(const Draft& draft) {
  const int stages = draft.stages();
  std::vector<std::string> kinds{stages == 1 ? "1 stage" : fmt::format("{} stages", stages),
                                 fmt::format("schedule {}", plan::name(draft.schedule))};
  if (stages == 1 && replicas(draft).front() > 1) kinds.emplace_back("pure data parallelism");
  if (std::ranges::find(draft.recompute, true) == draft.recompute.end()) {
    kinds.emplace_back("no recompute");
  }
  return kinds;
}

void Best::add(const Scored& scored) {
  const bool known_time = std::isfinite(scored.figures.iteration_ns);
  if (scored.figures.fits && known_time) add_to_top(scored);
  if (scored.figures.fits && !known_time) return;  // given up: slower than the best
  for (const std::string& kind : kinds_of(scored.draft)) {
    const auto [found, added] = kinds_.emplace(kind, scored);
    if (!added && better(scored, found->second)) found->second = scored;
  }
}

void Best::add(const Best& other) {
  for (const Scored& scored : other.top_) add_to_top(scored);
  for (const auto& [kind, scored] : other.kinds_) {
    const auto [found, added] = kinds_.emplace(kind, scored);
    if (!added && better(scored, found->second)) found->second = scored;
  }
}

}  // namespace rannc::partition
