#include "rannc/partition/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "rannc/util/error.h"
#include "rannc/util/json.h"

// The file `rannc-plan-request`; docs/planner-files.md, section 3.
namespace rannc::partition {
namespace {

using json::Place;
using plan::Schedule;

constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int kMaxStages = 1 << 20;
constexpr std::array kSchedules{Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved};
constexpr std::array<std::string_view, 5> kRecompute{"auto", "never", "always", "stage",
                                                     "segments"};

Schedule read_schedule(Place place) {
  for (Schedule schedule : kSchedules) {
    if (plan::name(schedule) == place.string()) return schedule;
  }
  place.fail(fmt::format("expected 'gpipe', '1f1b' or 'interleaved', found '{}'", place.string()));
}

Recompute read_recompute(Place place, int64_t version) {
  std::optional<Recompute> recompute;
  try {
    recompute = recompute_from_name(place.string());
  } catch (const ConfigError& error) {
    place.fail(error.what());
  }
  if (version < 3 && *recompute > Recompute::always) {
    place.fail(fmt::format("'{}' is of version 3, found version {}", place.string(), version));
  }
  // Files of these versions know no segments.
  return version < 3 && *recompute == Recompute::automatic ? Recompute::stage : *recompute;
}

int read_count(Place place) { return static_cast<int>(place.integer(1, kMaxStages)); }

Force read_force(Place place) {
  place.allow_only({"stages", "micro_batches", "schedule", "interleave", "replicas"});
  Force force;
  if (const auto found = place.find("stages")) force.stages = read_count(*found);
  if (const auto found = place.find("micro_batches")) {
    force.micro_batches = found->integer(1, kMaxRows);
  }
  if (const auto found = place.find("schedule")) force.schedule = read_schedule(*found);
  if (const auto found = place.find("interleave")) force.interleave = read_count(*found);
  if (const auto found = place.find("replicas")) {
    force.replicas.emplace();
    for (Place count : found->elements()) force.replicas->push_back(read_count(count));
  }
  return force;
}

/// Each check throws a ConfigError that begins with the key, as in the file.
class Verifier {
 public:
  Verifier(const Request& request, int ranks)
      : request_(request), force_(request.force), ranks_(ranks) {}

  void numbers() const {
    require(request_.global_batch >= 1, "global_batch", "must be at least 1");
    const auto number = [](double value, std::string_view key) {
      require(std::isfinite(value) && value >= 0, key, "must be finite and at least 0");
    };
    number(request_.gradient_bytes_per_param_byte, "gradient_bytes_per_param_byte");
    number(request_.optimizer_bytes_per_param_byte, "optimizer_bytes_per_param_byte");
    number(request_.memory_margin, "memory_margin");
    number(request_.master_bytes_per_param_byte, "master_bytes_per_param_byte");
    require(request_.memory_margin <= 1, "memory_margin",
            fmt::format("is a share of the memory, at most 1, found {}", request_.memory_margin));
    require(request_.max_interleave >= 1, "max_interleave", "must be at least 1");
    require(request_.reduction_buckets >= 1, "reduction_buckets", "must be at least 1");
  }

  void lists() const {
    std::unordered_set<int64_t> seen;
    for (const int64_t count : request_.micro_batches) {
      require(count >= 1, "micro_batches", fmt::format("must be at least 1, found {}", count));
      require(seen.insert(count).second, "micro_batches", fmt::format("{} occurs twice", count));
    }
    require(!request_.schedules.empty(), "schedules", "must name at least one schedule");
    for (Schedule schedule : request_.schedules) {
      require(std::ranges::count(request_.schedules, schedule) == 1, "schedules",
              fmt::format("'{}' occurs twice", plan::name(schedule)));
    }
    require(!allows(Schedule::interleaved) || request_.max_interleave >= 2, "max_interleave",
            fmt::format("'interleaved' is among the schedules, which needs at least 2, found {}",
                        request_.max_interleave));
  }

  void forced_schedule() const {
    if (force_.schedule) {
      require(allows(*force_.schedule), "force.schedule",
              fmt::format("'{}' is not among 'schedules'", plan::name(*force_.schedule)));
    }
    if (!force_.interleave) return;
    const int interleave = *force_.interleave;
    require(interleave >= 1 && interleave <= request_.max_interleave, "force.interleave",
            fmt::format("must be from 1 to max_interleave = {}, found {}", request_.max_interleave,
                        interleave));
    if (interleave > 1) {
      require(allows(Schedule::interleaved), "force.interleave",
              fmt::format("{} needs 'interleaved' among 'schedules'", interleave));
    }
    if (force_.schedule) {
      require((interleave > 1) == (*force_.schedule == Schedule::interleaved), "force.interleave",
              fmt::format("{} does not go with force.schedule = '{}'", interleave,
                          plan::name(*force_.schedule)));
    } else if (interleave == 1) {
      require(request_.schedules != std::vector{Schedule::interleaved}, "force.interleave",
              "1 does not go with 'interleaved', the only one of 'schedules'");
    }
  }

  void forced_micro_batches() const {
    if (!force_.micro_batches) return;
    const int64_t count = *force_.micro_batches;
    require(
        count >= 1 && count <= request_.global_batch, "force.micro_batches",
        fmt::format("must be from 1 to global_batch = {}, found {}", request_.global_batch, count));
    const std::vector<int64_t> allowed = allowed_micro_batches(request_);
    require(std::ranges::find(allowed, count) != allowed.end(), "force.micro_batches",
            fmt::format("{} is not among 'micro_batches' ({}); add it there", count,
                        fmt::join(allowed, ", ")));
  }

  void forced_stages() const {
    if (force_.stages) require(*force_.stages >= 1, "force.stages", "must be at least 1");
    if (force_.replicas) forced_replicas(*force_.replicas);
    const std::optional<int> stages =
        force_.replicas ? std::optional<int>(static_cast<int>(force_.replicas->size()))
                        : force_.stages;
    if (!stages) return;
    const char* key = force_.replicas ? "force.replicas" : "force.stages";
    if (force_.replicas && !plain(*stages) && interleaved(*stages) == 0) {
      const int needed = std::accumulate(force_.replicas->begin(), force_.replicas->end(), 0);
      require(needed <= ranks_, key,
              fmt::format("{} need {} ranks, but there are {}; take fewer, or start {} ranks",
                          *force_.replicas, needed, ranks_, needed));
    }
    require(plain(*stages) || interleaved(*stages) > 0, key,
            fmt::format("{} stages cannot be placed on {} by the allowed schedules ({})", *stages,
                        ranks_ == INT_MAX ? "any ranks" : fmt::format("{} ranks", ranks_),
                        allowed_schedules()));
  }

 private:
  static void require(bool holds, std::string_view key, std::string_view why) {
    if (!holds) throw ConfigError(fmt::format("plan request: $.{}: {}", key, why));
  }

  [[nodiscard]] std::string allowed_schedules() const {
    std::vector<std::string> names;
    for (const Schedule schedule : request_.schedules) names.emplace_back(plan::name(schedule));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  [[nodiscard]] bool allows(Schedule schedule) const {
    return std::ranges::find(request_.schedules, schedule) != request_.schedules.end();
  }

  /// Whether `stages` stages may run one per group of ranks.
  [[nodiscard]] bool plain(int stages) const {
    if (force_.interleave.value_or(1) > 1) return false;
    const bool schedule = force_.schedule
                              ? *force_.schedule != Schedule::interleaved
                              : allows(Schedule::gpipe) || allows(Schedule::one_f_one_b);
    const int64_t needed =
        force_.replicas ? sum(*force_.replicas, force_.replicas->size()) : stages;
    return schedule && needed <= ranks_;
  }

  /// The smallest allowed v for which `stages` stages may run on stages / v groups; 0: none.
  [[nodiscard]] int interleaved(int stages) const {
    if (!allows(Schedule::interleaved)) return 0;
    if (force_.schedule && *force_.schedule != Schedule::interleaved) return 0;
    for (int v = 2; v <= request_.max_interleave && v <= stages / 2; ++v) {
      if (stages % v != 0 || force_.interleave.value_or(v) != v) continue;
      const size_t groups = static_cast<size_t>(stages / v);
      if (!repeats(groups)) continue;
      const int64_t needed =
          force_.replicas ? sum(*force_.replicas, groups) : static_cast<int64_t>(groups);
      if (needed <= ranks_) return v;
    }
    return 0;
  }

  /// Stages i and i + groups share their ranks, so they have as many.
  [[nodiscard]] bool repeats(size_t groups) const {
    if (!force_.replicas) return true;
    const std::vector<int>& replicas = *force_.replicas;
    for (size_t i = groups; i < replicas.size(); ++i) {
      if (replicas[i] != replicas[i - groups]) return false;
    }
    return true;
  }

  static int64_t sum(const std::vector<int>& counts, size_t first) {
    return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(first),
                           int64_t{0});
  }

  void forced_replicas(const std::vector<int>& replicas) const {
    require(!replicas.empty(), "force.replicas", "must name at least one stage");
    for (int count : replicas) {
      require(count >= 1, "force.replicas", fmt::format("must be at least 1, found {}", count));
    }
    if (force_.stages) {
      require(
          replicas.size() == static_cast<size_t>(*force_.stages), "force.replicas",
          fmt::format("names {} stages, but force.stages = {}", replicas.size(), *force_.stages));
    }
    const int most = std::ranges::max(replicas);
    const std::vector<int64_t> allowed = allowed_micro_batches(request_);
    const int64_t fewest = force_.micro_batches ? *force_.micro_batches : std::ranges::min(allowed);
    require(fewest * most <= request_.global_batch, "force.replicas",
            fmt::format("{} replicas of {} micro-batches need {} rows, but global_batch = {}", most,
                        fewest, fewest * most, request_.global_batch));
  }

  const Request& request_;
  const Force& force_;
  int ranks_;
};

template <class Values, class Text>
std::string list(const Values& values, Text text) {
  std::string joined;
  for (const auto& value : values) joined += (joined.empty() ? "" : ", ") + text(value);
  return "[" + joined + "]";
}

std::string schedule_text(Schedule schedule) { return json::quote(plan::name(schedule)); }

std::string force_text(const Force& force) {
  std::vector<std::string> keys;
  if (force.stages) keys.push_back(fmt::format("\"stages\": {}", *force.stages));
  if (force.micro_batches) {
    keys.push_back(fmt::format("\"micro_batches\": {}", *force.micro_batches));
  }
  if (force.schedule) {
    keys.push_back(fmt::format("\"schedule\": {}", schedule_text(*force.schedule)));
  }
  if (force.interleave) keys.push_back(fmt::format("\"interleave\": {}", *force.interleave));
  if (force.replicas) {
    keys.push_back(fmt::format("\"replicas\": [{}]", fmt::join(*force.replicas, ", ")));
  }
  return fmt::format("{{{}}}", fmt::join(keys, ", "));
}

}  // namespace

std::vector<int64_t> allowed_micro_batches(const Request& request) {
  if (!request.micro_batches.empty()) return request.micro_batches;
  std::vector<int64_t> powers;
  for (int64_t count = 1; count <= request.global_batch; count *= 2) powers.push_back(count);
  return powers;
}

std::string_view name(Recompute recompute) { return kRecompute.at(static_cast<size_t>(recompute)); }

Recompute recompute_from_name(std::string_view name) {
  const auto* const found = std::ranges::find(kRecompute, name);
  if (found == kRecompute.end()) {
    throw ConfigError(
        fmt::format("expected 'auto', 'never', 'always', 'stage' or 'segments', found '{}'", name));
  }
  return static_cast<Recompute>(found - kRecompute.begin());
}

Request request_from_json(std::string_view text) {
  const json::Document document(text, "plan request");
  const Place root = document.root();
  const int64_t version = root.expect_format("rannc-plan-request", 3);
  std::vector<std::string_view> keys{"format",
                                     "version",
                                     "global_batch",
                                     "gradient_bytes_per_param_byte",
                                     "optimizer_bytes_per_param_byte",
                                     "memory_margin",
                                     "micro_batches",
                                     "schedules",
                                     "max_interleave",
                                     "recompute",
                                     "reduction_buckets",
                                     "force"};
  if (version > 1) keys.insert(keys.end(), {"master_bytes_per_param_byte", "shard_optimizer"});
  root.allow_only(keys);
  Request request;
  request.global_batch = root.at("global_batch").integer(1, kMaxRows);
  const auto number = [&](std::string_view key, double& value) {
    if (const auto found = root.find(key)) value = found->number();
  };
  number("gradient_bytes_per_param_byte", request.gradient_bytes_per_param_byte);
  number("optimizer_bytes_per_param_byte", request.optimizer_bytes_per_param_byte);
  number("memory_margin", request.memory_margin);
  number("master_bytes_per_param_byte", request.master_bytes_per_param_byte);
  if (const auto found = root.find("shard_optimizer")) request.shard_optimizer = found->boolean();
  if (const auto found = root.find("micro_batches")) {
    for (Place count : found->elements())
      request.micro_batches.push_back(count.integer(1, kMaxRows));
    if (request.micro_batches.empty())
      found->fail("must name at least one number of micro-batches");
  }
  if (const auto found = root.find("schedules")) {
    request.schedules.clear();
    for (Place name : found->elements()) request.schedules.push_back(read_schedule(name));
  }
  if (const auto found = root.find("max_interleave")) request.max_interleave = read_count(*found);
  if (version >= 3) request.recompute = Recompute::automatic;
  if (const auto found = root.find("recompute")) {
    request.recompute = read_recompute(*found, version);
  }
  if (const auto found = root.find("reduction_buckets")) {
    request.reduction_buckets = read_count(*found);
  }
  if (const auto found = root.find("force")) request.force = read_force(*found);
  verify(request, /*ranks=*/INT_MAX);  // all but what depends on the cluster
  return request;
}

std::string to_json(const Request& request) {
  const bool second = request.master_bytes_per_param_byte != 0 || request.shard_optimizer;
  const bool third =
      request.recompute == Recompute::automatic || request.recompute == Recompute::segments;
  const bool whole = request.recompute == Recompute::stage;
  return fmt::format(
      "{{\"format\": \"rannc-plan-request\", \"version\": {}, \"global_batch\": {},\n"
      " \"gradient_bytes_per_param_byte\": {}, \"optimizer_bytes_per_param_byte\": {}, "
      "\"memory_margin\": {},\n"
      " {}\"schedules\": {}, \"max_interleave\": {}, \"recompute\": \"{}\",\n"
      " \"reduction_buckets\": {}, {}\"force\": {}}}\n",
      third    ? 3
      : second ? 2
               : 1,
      request.global_batch, json::number_text(request.gradient_bytes_per_param_byte),
      json::number_text(request.optimizer_bytes_per_param_byte),
      json::number_text(request.memory_margin),
      request.micro_batches.empty()
          ? ""
          : fmt::format("\"micro_batches\": [{}], ", fmt::join(request.micro_batches, ", ")),
      list(request.schedules, schedule_text), request.max_interleave,
      whole ? "auto" : name(request.recompute), request.reduction_buckets,
      second ? fmt::format("\"master_bytes_per_param_byte\": {}, \"shard_optimizer\": {},\n ",
                           json::number_text(request.master_bytes_per_param_byte),
                           request.shard_optimizer)
             : "",
      force_text(request.force));
}

void verify(const Request& request, int ranks) {
  const Verifier verifier(request, ranks);
  verifier.numbers();
  verifier.lists();
  verifier.forced_schedule();
  verifier.forced_micro_batches();
  verifier.forced_stages();
}

}  // namespace rannc::partition
