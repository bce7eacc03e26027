#include "partition/improve/anneal_to_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "partition/blocks/contract.h"
#include "partition/improve/border_pieces.h"
#include "partition/improve/move_blocks.h"

namespace rannc::partition {
namespace {

/// A plan that needs a percent too much is as bad as one that takes so many percent longer, from
/// one start to the next. More helps where little memory is worth much time, but is in the way. The
/// rest: shares of the time by which a plan may be worse and still be taken, at first and at the
/// end; steps of each start, and blocks and actions looked at; plans whose memory is asked for,
/// which takes a millisecond for a hundred nodes and actions; blocks that move at once.
/// tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn`, with limited memory.
/// without it: the CNN with 48.2 MiB takes 359 ms instead of 342.
constexpr std::array kSteepness = {8.0, 30.0, 120.0};
constexpr double kHot = 0.05, kCold = 0.0005;
constexpr int64_t kMostSteps = 5000, kStepsWork = 2'000'000;
constexpr int64_t kAskedWork = 200'000, kMostAsked = 1000, kLeastAsked = 30;
constexpr std::array kShifts = {1, 2, 3, 5};
constexpr int kMostShifts = 4;

class Squeezer {
 public:
  Squeezer(const cost::GraphProfile& profile, const CloseUp& view, const SearchSpace& space,
           Assessor& assessor, Stop& stop)
      : profile_(profile), view_(view), space_(space), assessor_(assessor), stop_(stop) {}

  /// Of the drafts that fit the fastest; none where none was seen.
  std::optional<Scored> run(const Scored& start) {
    const int64_t actions = 2 * start.draft.stages() * start.draft.micro_batches;
    left_ =
        std::min(kAskedWork / (static_cast<int64_t>(profile_.nodes.size()) + actions), kMostAsked);
    if (left_ < kLeastAsked) return std::nullopt;
    const int64_t steps = std::clamp<int64_t>(
        kStepsWork / (static_cast<int64_t>(view_.blocks.size()) + actions), 200, kMostSteps);
    for (size_t k = 0; k < kSteepness.size(); ++k) {
      steepness_ = kSteepness.at(k);
      const int64_t share = left_ / static_cast<int64_t>(kSteepness.size() - k);
      const int64_t until = left_ - share;
      Scored now = start;
      double score_now = score(start, std::numeric_limits<double>::infinity());
      for (int64_t step = 0; step < steps && left_ > until && !stop_.now(); ++step) {
        std::optional<Scored> next = changed(now);
        if (!next) continue;
        const double done =
            std::max(static_cast<double>(step) / static_cast<double>(steps),
                     1 - static_cast<double>(left_ - until) / static_cast<double>(share));
        const double heat = kHot * std::pow(kCold / kHot, done);
        const double most = score_now * (1 - heat * std::log(1 - chance()));
        next->figures = assessor_.assess(next->draft, most);
        const double score_next = score(*next, most);
        if (score_next >= most) continue;
        now = std::move(*next);
        score_now = score_next;
      }
    }
    return std::move(best_);
  }

 private:
  double chance() { return std::uniform_real_distribution<>()(random_); }
  int one_of(int count) { return std::uniform_int_distribution<>(0, count - 1)(random_); }

  std::optional<Scored> changed(const Scored& from) {
    Scored result = from;
    const int borders = from.draft.stages() - 1;
    if (borders == 0) return std::nullopt;
    bool moved = false;
    for (int left = 1 + one_of(kMostShifts); left > 0; --left) {
      const int border = one_of(borders), up = one_of(2);
      const int count = kShifts.at(static_cast<size_t>(one_of(kShifts.size())));
      Draft draft = result.draft;
      if (!shift(assessor_.model(), draft, border + 1 - up, border + up, count)) continue;
      result.draft = std::move(draft);
      moved = true;
    }
    if (!moved || !respects_pins(space_, result.draft)) return std::nullopt;
    return result;
  }

  /// Its time, longer by what it needs too much; infinite if the time alone is `most` or more.
  double score(const Scored& scored, double most) {
    const double ns = scored.figures.iteration_ns;
    if (!scored.figures.fits || ns >= most) return std::numeric_limits<double>::infinity();
    const Room& room = space_.room;
    const auto [known, is_new] = known_bytes_.emplace(scored.draft.stage_of, 0);
    if (is_new) {
      --left_;
      known->second = room.step_bytes(to_plan(profile_, to_node_plan(scored, view_.blocks)));
    }
    const double bytes = known->second;
    if (bytes <= room.step_limit_bytes && (!best_ || better(scored, *best_))) best_ = scored;
    return ns * (1 + steepness_ * std::max(bytes / room.step_limit_bytes - 1, 0.0));
  }

  const cost::GraphProfile& profile_;
  const CloseUp& view_;
  const SearchSpace& space_;
  Assessor& assessor_;
  Stop& stop_;
  std::mt19937_64 random_;
  double steepness_ = 0;
  int64_t left_ = 0;                                // plans that may be asked for
  std::map<std::vector<int>, double> known_bytes_;  // by `stage_of`
  std::optional<Scored> best_;
};

}  // namespace

NodePlan squeeze(const cost::GraphProfile& profile, const cost::Cluster& cluster,
                 const Request& request, const SearchSpace& space, const std::vector<Piece>& pieces,
                 const NodePlan& plan, Stop& stop) {
  const CloseUp view = close_up(pieces, plan, profile.nodes.size());
  const cost::GraphProfile blocks = contract(profile, view.blocks, {});
  const BlockCosts costs(profile, view.blocks);
  const BlockModel model(blocks, request, costs);
  Room room = space.room;
  room.in_step = room.added;  // the rough account has had its say
  Assessor assessor(model, cluster, request, room);
  Scored start = plan.scored;
  start.draft.stage_of = view.stage_of;
  start.figures = assessor.assess(start.draft);
  const std::optional<Scored> best =
      Squeezer(profile, view, with_pins(space, view, space.pin_of_node), assessor, stop).run(start);
  return best ? to_node_plan(*best, view.blocks) : plan;
}

}  // namespace rannc::partition
