#include "partition/blocks/blocks.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "partition/blocks/contract.h"
#include "partition/blocks/linear_order.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

/// How many times the average block's time a block may take when pieces are joined: with 2 or more,
/// blocks never get in the way of joining, as docs/algorithms.md shows.
/// tuned by: with 4, plans of `ablations large --problems 300 --inexact` are 0.06 % shorter on
/// average, 1.4 % at most.
/// without it: one block may take most of the time, and no plan is better than it.
constexpr double kBalance = 2.0;

/// Rounds in which the borders of blocks move to the smallest cut nearby; few are used.
/// tuned by: with 4 or 16, and without any, plans of `ablations large --problems 300 --inexact`
/// stay as they are.
/// without it: a border stays where joining left it, and a plan of `huge` takes 0.07 % longer; it
/// stays for larger models than these, and takes no time that is seen.
constexpr int kRefinementPasses = 8;

/// The pieces in their final linear order, as numbers.
struct Line {
  std::vector<double> time;    ///< per piece, forward + backward
  std::vector<double> cut;     ///< per border before a piece
  std::vector<uint64_t> hash;  ///< equal for pieces of equal operators, costs and sizes
};

uint64_t mix(uint64_t seed, uint64_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

uint64_t piece_hash(const cost::GraphProfile& profile, const Piece& piece) {
  uint64_t hash = piece.size();
  const std::hash<double> number;
  for (const uint32_t index : piece) {
    const cost::ProfileNode& node = profile.nodes[index];
    hash = mix(hash, std::hash<std::string>{}(node.op));
    for (const auto* costs : {&node.forward_ns, &node.backward_ns, &node.saved_bytes,
                              &node.forward_host_ns, &node.backward_host_ns}) {
      for (const double cost : *costs) hash = mix(hash, number(cost));
    }
    for (const cost::ProfileOutput& output : node.outputs) {
      hash = mix(mix(hash, number(output.size.bytes_per_row)), number(output.size.fixed_bytes));
    }
    for (const uint32_t param : node.params) hash = mix(hash, number(profile.params[param].bytes));
  }
  return hash;
}

double total(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// A border between two blocks, as the queue sorts it: the smallest goes first.
struct Border {
  double weight;
  uint64_t pair_hash;
  size_t position;
  auto operator<=>(const Border&) const = default;
};

/// The blocks of a line, as a list of first positions that shrinks one border at a time.
class Joiner {
 public:
  Joiner(const Line& line, int max_blocks)
      : line_(line),
        max_blocks_(static_cast<size_t>(max_blocks)),
        count_(line.time.size()),
        time_(line.time),
        hash_(line.hash),
        previous_(line.time.size() + 1),
        next_(line.time.size() + 1) {
    average_ = std::max(total(line.time) / max_blocks, 1e-9);
    limit_ = std::max(kBalance * average_, *std::ranges::max_element(line.time));
    mean_cut_ = std::max(total(line.cut) / static_cast<double>(line.cut.size()), 1e-9);
    for (size_t k = 0; k <= line.time.size(); ++k) {
      previous_[k] = k - 1;
      next_[k] = k + 1;
    }
    for (size_t k = 1; k < line.time.size(); ++k) insert(k);
  }

  double limit() const { return limit_; }

  /// First positions of the blocks, ascending.
  std::vector<size_t> run() {
    while (count_ > max_blocks_) {
      // Not empty: were every pair of neighbours above twice the average, there would be no more
      // than max_blocks blocks.
      RANNC_CHECK(!queue_.empty(), "no border can be removed");
      const Border first = *queue_.begin();
      remove(first);
      // Its equals follow even below max_blocks, so that repeated layers are cut alike.
      while (!queue_.empty() && queue_.begin()->weight == first.weight &&
             queue_.begin()->pair_hash == first.pair_hash) {
        remove(*queue_.begin());
      }
    }
    std::vector<size_t> starts;
    for (size_t k = 0; k < time_.size(); k = next_[k]) starts.push_back(k);
    return starts;
  }

 private:
  Border border(size_t position) const {
    const size_t left = previous_[position];
    const double cut = line_.cut[position] / mean_cut_;
    return {(time_[left] + time_[position]) / average_ - cut, mix(hash_[left], hash_[position]),
            position};
  }

  void insert(size_t position) {
    const double joined = time_[previous_[position]] + time_[position];
    if (joined <= limit_) queue_.insert(border(position));
  }

  void remove(Border chosen) {  // a copy: it is one of the queue, which lets go of it here
    const size_t position = chosen.position;
    const size_t left = previous_[position], right = next_[position];
    queue_.erase(chosen);
    if (left > 0) queue_.erase(border(left));
    if (right < time_.size()) queue_.erase(border(right));
    time_[left] += time_[position];
    hash_[left] = chosen.pair_hash;
    next_[left] = right;
    previous_[right] = left;
    --count_;
    if (left > 0) insert(left);
    if (right < time_.size()) insert(right);
  }

  const Line& line_;
  size_t max_blocks_, count_;
  double average_ = 0, limit_ = 0, mean_cut_ = 0;
  std::vector<double> time_;             // of the block that starts here
  std::vector<uint64_t> hash_;           // likewise
  std::vector<size_t> previous_, next_;  // first positions of the neighbours
  std::set<Border> queue_;
};

/// Moves each border to the smallest cut between its neighbours that keeps both blocks within
/// `limit`; stays where it is unless the cut becomes smaller.
void refine(const Line& line, double limit, std::vector<size_t>& starts) {
  for (int pass = 0; pass < kRefinementPasses; ++pass) {
    bool moved = false;
    for (size_t k = 1; k < starts.size(); ++k) {
      const size_t from = starts[k - 1],
                   to = k + 1 < starts.size() ? starts[k + 1] : line.time.size();
      const double both = total({line.time.begin() + static_cast<ptrdiff_t>(from),
                                 line.time.begin() + static_cast<ptrdiff_t>(to)});
      double left = 0;
      size_t best = starts[k];
      for (size_t position = from + 1; position < to; ++position) {
        left += line.time[position - 1];
        if (left > limit || both - left > limit) continue;
        if (line.cut[position] < line.cut[best]) best = position;
      }
      moved |= best != starts[k];
      starts[k] = best;
    }
    if (!moved) return;
  }
}

}  // namespace

Blocks make_blocks(const cost::GraphProfile& profile, const std::vector<Piece>& pieces,
                   const BlockOptions& options) {
  Blocks result;
  if (pieces.empty()) return result;
  const auto rows = std::max<int64_t>(1, static_cast<int64_t>(options.rows));
  const cost::GraphProfile graph = contract(profile, pieces, {rows});

  std::vector<uint32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> cut = cut_bytes(graph, order, options.rows);
  std::vector<uint32_t> depth_first = depth_first_order(graph);
  std::vector<double> depth_first_cut = cut_bytes(graph, depth_first, options.rows);
  if (total(depth_first_cut) < total(cut)) {
    result.depth_first = true;
    order = std::move(depth_first);
    cut = std::move(depth_first_cut);
  }

  Line line{.time = {}, .cut = std::move(cut), .hash = {}};
  for (const uint32_t piece : order) {
    const cost::ProfileNode& node = graph.nodes[piece];
    double forward = node.forward_ns[0], backward = node.backward_ns[0];
    if (!node.forward_host_ns.empty()) forward = std::max(forward, node.forward_host_ns[0]);
    if (!node.backward_host_ns.empty()) backward = std::max(backward, node.backward_host_ns[0]);
    line.time.push_back(forward + backward);
    line.hash.push_back(piece_hash(profile, pieces[piece]));
  }
  Joiner joiner(line, options.max_blocks);
  std::vector<size_t> starts = joiner.run();
  if (starts.size() < order.size()) refine(line, joiner.limit(), starts);

  for (size_t k = 0; k < starts.size(); ++k) {
    const size_t end = k + 1 < starts.size() ? starts[k + 1] : order.size();
    std::vector<uint32_t>& block = result.parts.emplace_back();
    for (size_t position = starts[k]; position < end; ++position) {
      block.insert(block.end(), pieces[order[position]].begin(), pieces[order[position]].end());
    }
    std::ranges::sort(block);
  }
  return result;
}

}  // namespace rannc::partition
