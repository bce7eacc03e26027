#include "partition/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "rannc/util/human.h"

namespace rannc::partition {
namespace {

constexpr size_t kShownRunnersUp = 8;

/// Parts of an iteration, for comparison only.
struct Parts {
  double one_micro_batch_ns = 0, repeats_ns = 0, reduce_ns = 0;
};

Parts parts(const Judged& judged) {
  Parts result;
  double slowest = 0;
  for (const StageEvaluation& stage : judged.evaluation.stages) {
    const double busy = stage.forward_ns + stage.backward_ns;
    result.one_micro_batch_ns += busy;
    slowest = std::max(slowest, busy);
    result.reduce_ns = std::max(result.reduce_ns, stage.reduce_ns);
  }
  result.repeats_ns = static_cast<double>(judged.arrangement.micro_batches - 1) * slowest;
  return result;
}

std::string why(const Judged& loser, const Judged& winner) {
  if (!loser.evaluation.problems.empty()) return loser.evaluation.problems.front();
  const Parts mine = parts(loser), best = parts(winner);
  const std::pair<double, std::string> excess[] = {
      {mine.one_micro_batch_ns - best.one_micro_batch_ns, "the way of one micro-batch"},
      {mine.repeats_ns - best.repeats_ns, "the slowest stage, once per further micro-batch,"},
      {mine.reduce_ns - best.reduce_ns, "the longest gradient reduction"}};
  const auto& [more, what] =
      *std::ranges::max_element(excess, {}, [](const auto& entry) { return entry.first; });
  const double loss = loser.evaluation.iteration_ns - winner.evaluation.iteration_ns;
  if (more <= 0) return fmt::format("slower by {}: waiting for transfers", human_ns(loss));
  return fmt::format("slower by {}: {} takes {} longer", human_ns(loss), what, human_ns(more));
}

nlohmann::ordered_json describe(const Judged& judged) {
  nlohmann::ordered_json replicas = nlohmann::ordered_json::array();
  for (const StageChoice& stage : judged.arrangement.stages) replicas.push_back(stage.replicas);
  return {{"stages", judged.arrangement.stages.size()},
          {"schedule", plan::name(judged.arrangement.schedule)},
          {"micro_batches", judged.arrangement.micro_batches},
          {"replicas", replicas},
          {"iteration_ns", std::llround(judged.evaluation.iteration_ns)}};
}

}  // namespace

std::string make_notes(const SearchStory& story, const std::vector<Judged>& judged,
                       bool all_runners_up) {
  nlohmann::ordered_json notes;
  notes["search"] = "complete";
  notes["nodes"] = story.nodes;
  notes["pieces"] = story.pieces;
  notes["blocks"] = story.blocks;
  notes["order"] = story.depth_first ? "depth_first" : "given";
  notes["states"] = story.states;
  notes["evaluated"] = judged.size();
  notes["closed_form_ns"] = std::llround(story.closed_form_ns);
  nlohmann::ordered_json runners_up = nlohmann::ordered_json::array();
  std::set<std::pair<size_t, plan::Schedule>> shown;
  for (const Judged& entry : judged) {
    const bool fresh =
        shown.emplace(entry.arrangement.stages.size(), entry.arrangement.schedule).second;
    if (&entry == &judged.front() || (!fresh && !all_runners_up)) continue;
    if (!all_runners_up && runners_up.size() == kShownRunnersUp) break;
    nlohmann::ordered_json line = describe(entry);
    line["why"] = why(entry, judged.front());
    runners_up.push_back(std::move(line));
  }
  notes["runners_up"] = std::move(runners_up);
  return notes.dump();
}

}  // namespace rannc::partition
