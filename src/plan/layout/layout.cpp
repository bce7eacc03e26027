#include "rannc/plan/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "plan/layout/layout_runs.h"
#include "rannc/util/error.h"
#include "rannc/util/json.h"

namespace rannc::plan {
namespace {

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    if (a.begin[d] + a.size[d] <= b.begin[d] || b.begin[d] + b.size[d] <= a.begin[d]) return false;
  }
  return true;
}

std::string text_of(const Box& box) {
  std::vector<std::string> ranges;
  for (size_t d = 0; d < box.size.size(); ++d) {
    const int64_t begin = d < box.begin.size() ? box.begin[d] : 0;
    ranges.push_back(fmt::format("{}:{}", begin, begin + box.size[d]));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

bool is_inside(const Box& box, const std::vector<int64_t>& shape) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.begin[d] < 0 || box.size[d] < 0 || box.size[d] > shape[d] - box.begin[d]) return false;
  }
  return true;
}

void check(const std::string& tensor, const std::vector<int64_t>& shape,
           const Layout::Holders& holders) {
  const Part& part = holders.part;
  const std::string who =
      fmt::format("tensor '{}' of shape [{}] on rank{} {}", tensor, fmt::join(shape, ", "),
                  holders.ranks.size() == 1 ? "" : "s", fmt::join(holders.ranks, ", "));
  for (size_t one = 0; one < part.boxes.size(); ++one) {
    if (!is_inside(part.boxes[one], shape)) {
      throw PlanError(
          fmt::format("{}: the box {} is not inside of the tensor", who, text_of(part.boxes[one])));
    }
    for (size_t other = 0; other < one; ++other) {
      if (part.boxes[one].numel() == 0 || part.boxes[other].numel() == 0 ||
          !overlap(part.boxes[one], part.boxes[other])) {
        continue;
      }
      throw PlanError(fmt::format("{}: the boxes {} and {} overlap", who,
                                  text_of(part.boxes[other]), text_of(part.boxes[one])));
    }
  }
  if (!part.range) return;
  const auto [begin, end] = *part.range;
  const int64_t all = Part{part.boxes}.numel();
  if (begin >= 0 && begin <= end && end <= all) return;
  throw PlanError(fmt::format("{}: the range [{}, {}) leaves the {} numbers of its boxes", who,
                              begin, end, all));
}

/// Equal parts in one form: without empty boxes, and without a range that leaves nothing out.
Part simplified(Part part) {
  std::erase_if(part.boxes, [](const Box& box) { return box.numel() == 0; });
  if (part.range == std::pair(int64_t{0}, Part{part.boxes}.numel())) part.range.reset();
  return part;
}

/// A piece of what ranks with equal parts still need, all of which the ranks of one set hold.
struct Missing {
  size_t set = 0;
  Run run;  ///< from: in the tensor; to: in the array of the receiver
};

/// Messages and copies from one layout to another.
class Mover {
 public:
  Mover(const Layout& from, const Layout& to, std::optional<Rank> rank)
      : from_(from), to_(to), rank_(rank), cover_(from) {
    for (size_t index = 0; index < from.parts().size(); ++index) {
      for (const Rank holder : from.parts()[index].ranks) part_of_[holder] = index;
    }
    turns_.assign(cover_.sets.size(), 0);
  }

  std::vector<Move> run() {
    for (const Layout::Holders& wanted : to_.parts()) {
      std::map<size_t, std::vector<Rank>> receivers;  // by what they hold
      for (const Rank rank : wanted.ranks) {
        const auto own = part_of_.find(rank);
        receivers[own == part_of_.end() ? kNoPart : own->second].push_back(rank);
      }
      const std::vector<Run> runs = runs_by_place(to_.shape(), wanted.part);
      for (const auto& [own, ranks] : receivers) serve(runs, own, ranks);
    }
    std::ranges::sort(moves_, {}, [](const Move& move) { return std::pair(move.to, move.from); });
    return std::move(moves_);
  }

 private:
  static constexpr size_t kNoPart = SIZE_MAX;

  [[nodiscard]] bool is_wanted(Rank from, Rank to) const {
    return !rank_ || *rank_ == from || *rank_ == to;
  }

  /// All `receivers` shall hold `wanted`, and hold the part `own` now.
  void serve(const std::vector<Run>& wanted, size_t own, const std::vector<Rank>& receivers) {
    std::vector<Run> kept;
    std::vector<Missing> missing;
    for (const Run& run : wanted) take_apart(run, own, receivers.front(), kept, missing);

    std::vector<size_t> sets;
    for (const Missing& piece : missing) sets.push_back(piece.set);
    std::ranges::sort(sets);
    sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    for (const Rank receiver : receivers) {
      if (!kept.empty() && is_wanted(receiver, receiver)) {
        moves_.push_back({receiver, receiver, kept});
      }
      std::unordered_map<size_t, Rank> sender_of;  // by set
      bool any = false;
      for (const size_t set : sets) {
        const std::vector<Rank>& ranks = cover_.sets[set].ranks;
        const Rank sender = ranks[turns_[set]++ % ranks.size()];
        sender_of[set] = sender;
        any = any || is_wanted(sender, receiver);
      }
      if (any) send(missing, sender_of, receiver);
    }
  }

  /// Parts `run` into what the receiver holds and pieces that others hold.
  void take_apart(const Run& run, size_t own, Rank receiver, std::vector<Run>& kept,
                  std::vector<Missing>& missing) const {
    int64_t at = run.from;
    const int64_t end = run.from + run.count;
    for (auto segment = cover_.first_behind(at); at < end; ++segment) {
      if (segment == cover_.segments.end() || segment->begin > at) {
        const int64_t gap = segment == cover_.segments.end() ? end : std::min(end, segment->begin);
        throw PlanError(fmt::format(
            "tensor '{}': rank {} shall hold the numbers [{}, {}), and no rank holds them now",
            from_.tensor(), receiver, at, gap));
      }
      const int64_t count = std::min(end, segment->end) - at;
      const int64_t target = run.to + at - run.from;
      if (own != kNoPart && cover_.holds(segment->set, own)) {
        add_run(kept, {cover_.place_in(own, at), target, count});
      } else {
        missing.push_back({segment->set, {at, target, count}});
      }
      at += count;
    }
  }

  void send(const std::vector<Missing>& missing, const std::unordered_map<size_t, Rank>& sender_of,
            Rank receiver) {
    std::map<Rank, std::vector<Run>> runs_from;
    for (const Missing& piece : missing) {
      const Rank sender = sender_of.at(piece.set);
      if (!is_wanted(sender, receiver)) continue;
      const int64_t source = cover_.place_in(part_of_.at(sender), piece.run.from);
      add_run(runs_from[sender], {source, piece.run.to, piece.run.count});
    }
    for (auto& [sender, runs] : runs_from) moves_.push_back({sender, receiver, std::move(runs)});
  }

  const Layout& from_;
  const Layout& to_;
  std::optional<Rank> rank_;
  Cover cover_;
  std::unordered_map<Rank, size_t> part_of_;
  std::vector<size_t> turns_;  // [set] how many receivers it has served
  std::vector<Move> moves_;
};

/// The ranks by what they hold, in the order of their arrays.
std::map<std::vector<std::tuple<int64_t, int64_t>>, std::vector<Rank>> ranks_by_numbers(
    const Layout& layout) {
  std::map<std::vector<std::tuple<int64_t, int64_t>>, std::vector<Rank>> result;
  for (const Layout::Holders& holders : layout.parts()) {
    std::vector<std::tuple<int64_t, int64_t>> numbers;
    for (const Run& run : runs_of(layout.shape(), holders.part)) {
      numbers.emplace_back(run.from, run.count);
    }
    std::vector<Rank>& ranks = result[numbers];
    ranks.insert(ranks.end(), holders.ranks.begin(), holders.ranks.end());
    std::ranges::sort(ranks);
  }
  return result;
}

}  // namespace

int64_t Box::numel() const { return product(size); }

int64_t Part::numel() const {
  if (range) return range->second - range->first;
  int64_t sum = 0;
  for (const Box& box : boxes) sum += box.numel();
  return sum;
}

int64_t Move::numel() const {
  int64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

Layout::Layout(std::string tensor, std::vector<int64_t> shape, std::vector<Holders> holders)
    : tensor_(std::move(tensor)), shape_(std::move(shape)) {
  std::map<Part, std::vector<Rank>> ranks_of;
  std::vector<Rank> all;
  for (Holders& one : holders) {
    check(tensor_, shape_, one);
    all.insert(all.end(), one.ranks.begin(), one.ranks.end());
    Part part = simplified(std::move(one.part));
    if (part.numel() == 0) continue;
    std::vector<Rank>& ranks = ranks_of[std::move(part)];
    ranks.insert(ranks.end(), one.ranks.begin(), one.ranks.end());
  }
  std::ranges::sort(all);
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end()) {
    throw PlanError(fmt::format("tensor '{}': rank {} has two parts", tensor_, *twice));
  }
  for (auto& [part, ranks] : ranks_of) {
    std::ranges::sort(ranks);
    if (!ranks.empty()) parts_.push_back({part, std::move(ranks)});
  }
  std::ranges::sort(parts_, {}, [](const Holders& one) { return one.ranks.front(); });
}

Layout Layout::whole(std::string tensor, std::vector<int64_t> shape, std::vector<Rank> ranks) {
  Part all{{{std::vector<int64_t>(shape.size(), 0), shape}}};
  return {std::move(tensor), std::move(shape), {{std::move(all), std::move(ranks)}}};
}

int64_t Layout::numel() const { return product(shape_); }

int64_t Layout::numel(Rank rank) const {
  for (const Holders& holders : parts_) {
    if (std::ranges::binary_search(holders.ranks, rank)) return holders.part.numel();
  }
  return 0;
}

std::vector<Rank> Layout::holders(int64_t number) const {
  std::vector<Rank> ranks;
  for (const Holders& holders : parts_) {
    const std::vector<Run> runs = runs_of(shape_, holders.part);
    const bool holds = std::ranges::any_of(
        runs, [&](const Run& run) { return run.from <= number && number < run.from + run.count; });
    if (holds) ranks.insert(ranks.end(), holders.ranks.begin(), holders.ranks.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<Answer> Layout::answers() const {
  const Cover cover(*this);
  std::vector<Answer> answers;
  for (const Holders& holders : parts_) answers.push_back({holders.ranks.front(), {}});
  int64_t at = 0;
  const auto check_gap = [&](int64_t begin) {
    if (begin == at) return;
    throw PlanError(
        fmt::format("tensor '{}': no rank holds the numbers [{}, {})", tensor_, at, begin));
  };
  for (const Cover::Segment& segment : cover.segments) {
    check_gap(segment.begin);
    const size_t part = cover.sets[segment.set].parts.front();
    add_run(answers[part].runs,
            {segment.begin, cover.place_in(part, segment.begin), segment.end - segment.begin});
    at = segment.end;
  }
  check_gap(numel());
  std::erase_if(answers, [](const Answer& answer) { return answer.runs.empty(); });
  return answers;
}

std::vector<Move> Layout::moves(const Layout& to, std::optional<Rank> rank) const {
  if (shape_ != to.shape_) {
    throw PlanError(fmt::format("tensor '{}' has the shape [{}], and shall have [{}]", tensor_,
                                fmt::join(shape_, ", "), fmt::join(to.shape_, ", ")));
  }
  return Mover(*this, to, rank).run();
}

std::string Layout::to_json() const {
  std::vector<std::string> parts;
  for (const Holders& holders : parts_) {
    std::vector<std::string> boxes;
    for (const Box& box : holders.part.boxes) {
      boxes.push_back(
          fmt::format("[[{}], [{}]]", fmt::join(box.begin, ", "), fmt::join(box.size, ", ")));
    }
    std::string range;
    if (const auto& given = holders.part.range) {
      range = fmt::format(", \"range\": [{}, {}]", given->first, given->second);
    }
    parts.push_back(fmt::format("{{\"ranks\": [{}], \"boxes\": [{}]{}}}",
                                fmt::join(holders.ranks, ", "), fmt::join(boxes, ", "), range));
  }
  return fmt::format("{{\"tensor\": {}, \"shape\": [{}], \"parts\": [{}]}}", json::quote(tensor_),
                     fmt::join(shape_, ", "), fmt::join(parts, ", "));
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.shape_ != b.shape_) return false;
  return a.parts_ == b.parts_ || ranks_by_numbers(a) == ranks_by_numbers(b);
}

}  // namespace rannc::plan
