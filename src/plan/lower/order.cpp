#include "plan/lower/order.h"

#include <algorithm>
#include <utility>

#include "plan/lower/times.h"
#include "rannc/plan/buckets.h"

namespace rannc::plan {
namespace {

/// The backward on one rank that completes the gradients of a reduction there, as index into its
/// computations.
constexpr size_t kNoBackward = static_cast<size_t>(-1);

class Order {
 public:
  Order(Program& program, const Plan& plan, const ir::Graph& graph, const Placement& placement)
      : program_(program),
        times_(call_times(program, plan, graph, placement)),
        first_users_(program.reductions.empty() ? std::vector<uint32_t>() : first_users(graph)) {
    const int64_t bucket_bytes = plan.bucket_bytes.value_or(kBucketBytes);
    for (const Reduction& reduction : program.reductions) {
      program.buckets.push_back(buckets(reduction, graph, first_users_, bucket_bytes));
      for (Bucket& bucket : program.buckets.back()) bucket.sharded = plan.shard_optimizer;
    }
  }

  void write() {
    add_transfers(Direction::forward);
    add_transfers(Direction::backward);
    add_gathers(Direction::forward);
    add_gathers(Direction::backward);
    for (int stage = 0; stage < program_.stages(); ++stage) {
      if (times_.buffers[stage] < 0) continue;
      add({CommunicationKind::buffers, stage}, /*after_return=*/false, times_.buffers[stage]);
    }
    if (times_.outputs >= 0 && program_.ranks() > 1) {
      add({CommunicationKind::outputs}, /*after_return=*/false, times_.outputs);
    }
    for (int index = 0; index < static_cast<int>(program_.reductions.size()); ++index) {
      add_buckets(index);
    }
    std::ranges::sort(found_, {},
                      [](const Found& found) { return std::pair(found.key, found.number); });
    issue();
  }

 private:
  /// By phase and time; equal ones by number.
  struct Found {
    uint64_t key;
    uint32_t number;
    Communication communication;
  };
  /// Where a rank is, as it goes through the order.
  struct Cursor {
    size_t next = 0;             // the computation that begins no earlier
    std::vector<size_t> places;  // [issue]: 2 c: before computation c; 2 c + 1: inside of it
    bool any_inside = false;
  };

  [[nodiscard]] bool has_phases() const {
    return program_.training && !backward_comes_first(program_.schedule);
  }

  void add(const Communication& communication, bool after_return, int64_t time) {
    const uint64_t phase = after_return && has_phases() ? uint64_t{1} << 63 : 0;
    found_.push_back(
        {phase | static_cast<uint64_t>(time), static_cast<uint32_t>(found_.size()), communication});
  }

  void add_transfers(Direction direction) {
    const bool back = direction == Direction::backward;
    for (int index = 0; index < static_cast<int>(program_.transfers.size()); ++index) {
      if (back && !program_.transfers[index].grad) continue;
      add({.index = index, .direction = direction}, back,
          times_.transfers[static_cast<size_t>(direction)][index]);
    }
  }

  void add_gathers(Direction direction) {
    const auto& gathers = times_.gathers[static_cast<size_t>(direction)];
    for (int stage = 0; stage < program_.stages(); ++stage) {
      for (const Gather& gather : gathers[stage]) {
        add({.kind = CommunicationKind::statistics,
             .index = stage,
             .part = static_cast<int>(gather.node),
             .direction = direction},
            direction == Direction::backward, gather.at);
      }
    }
  }

  /// When each bucket is complete on all its ranks.
  void add_buckets(int index) {
    const Reduction& reduction = program_.reductions[index];
    const std::vector<Bucket>& buckets = program_.buckets[index];
    int64_t total = 0;
    for (const Bucket& bucket : buckets) total += bucket.bytes;
    std::vector<size_t>& completed_by = completed_by_.emplace_back();
    std::vector<int64_t> ends(buckets.size(), 0);
    for (Rank rank : reduction.ranks) {
      const std::vector<Computation>& computations = times_.ranks[rank].computations;
      size_t last = computations.size();
      while (last-- > 0) {
        const Computation& computation = computations[last];
        if (!computation.forward &&
            std::ranges::binary_search(reduction.stages, computation.stage)) {
          break;
        }
      }
      completed_by.push_back(last);  // kNoBackward when there is no such backward
      if (last == kNoBackward) continue;
      int64_t bytes = 0;
      for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
        bytes += buckets[bucket].bytes;
        const int64_t share = total == 0 ? kWholeShare : bytes * kWholeShare / total;
        ends[bucket] = std::max(
            ends[bucket], completed_at(computations[last], reduction, buckets[bucket], share));
      }
    }
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      add({CommunicationKind::bucket, index, static_cast<int>(bucket)}, /*after_return=*/true,
          ends[bucket]);
    }
  }

  /// A backward that stops for gathers completes a bucket between the two where its last node runs.
  [[nodiscard]] int64_t completed_at(const Computation& backward, const Reduction& reduction,
                                     const Bucket& bucket, int64_t share) const {
    const std::vector<Gather>& gathers = times_.gathers[1][backward.stage];
    if (gathers.empty()) return time_at(backward, share);
    uint32_t last_node = static_cast<uint32_t>(-1);
    for (size_t parameter : bucket.parameters) {
      last_node = std::min(last_node, first_users_[reduction.parameters[parameter].index]);
    }
    const auto before = std::ranges::count_if(
        gathers, [&](const Gather& gather) { return gather.node >= last_node; });
    const int64_t part = times_.gather_ns[1][backward.stage];
    const int64_t begin = before == 0 ? backward.begin : gathers[before - 1].at;
    const auto parts = static_cast<int64_t>(gathers.size()) + 1;
    return begin +
           std::clamp<int64_t>(part * parts * share / kWholeShare - before * part, 1, part - 1);
  }

  void issue() {
    program_.order.reserve(found_.size());
    program_.issues.resize(program_.actions.size());
    cursors_.resize(program_.actions.size());
    for (const Found& found : found_) {
      const Communication& communication = found.communication;
      const bool after_return = (found.key >> 63) != 0;
      const auto time = static_cast<int64_t>(found.key & ~(uint64_t{1} << 63));
      switch (communication.kind) {
        case CommunicationKind::transfer: {
          const Transfer& transfer = program_.transfers[communication.index];
          issue_on(transfer.from, after_return, time);
          if (transfer.to != transfer.from) issue_on(transfer.to, after_return, time);
          break;
        }
        case CommunicationKind::statistics: {
          const bool forward = communication.direction == Direction::forward;
          for (Rank rank : program_.stage_ranks[communication.index]) {
            issue_inside(rank, computation_of(rank, communication.index, forward));
          }
          break;
        }
        case CommunicationKind::buffers:
          for (Rank rank : program_.stage_ranks[communication.index]) {
            issue_on(rank, after_return, time);
          }
          break;
        case CommunicationKind::outputs:
          for (Rank rank = 0; rank < program_.ranks(); ++rank) issue_on(rank, after_return, time);
          break;
        case CommunicationKind::bucket: {
          const Reduction& reduction = program_.reductions[communication.index];
          for (size_t member = 0; member < reduction.ranks.size(); ++member) {
            const Rank rank = reduction.ranks[member];
            const size_t backward = completed_by_[communication.index][member];
            // What ends with a backward comes after the messages that it sends.
            if (backward != kNoBackward && time < times_.ranks[rank].computations[backward].end) {
              issue_inside(rank, backward);
            } else {
              issue_on(rank, after_return, time);
            }
          }
          break;
        }
      }
      program_.order.push_back(communication);
    }
    for (Rank rank = 0; rank < program_.ranks(); ++rank) settle(rank);
  }

  [[nodiscard]] size_t computation_of(Rank rank, int stage, bool forward) const {
    const auto found =
        std::ranges::find_if(times_.ranks[rank].computations, [&](const Computation& computation) {
          return computation.stage == stage && computation.forward == forward;
        });
    return static_cast<size_t>(found - times_.ranks[rank].computations.begin());
  }

  /// Before the first computation that begins no earlier, on the same side of return_outputs.
  void issue_on(Rank rank, bool after_return, int64_t time) {
    const RankTimes& times = times_.ranks[rank];
    Cursor& cursor = cursors_[rank];
    const size_t end = after_return ? times.computations.size() : times.returned_at;
    if (after_return) cursor.next = std::max(cursor.next, times.returned_at);
    while (cursor.next < end && times.computations[cursor.next].begin < time) ++cursor.next;
    const int action = cursor.next < end ? times.computations[cursor.next].issue_at
                                         : times.last_issue_at[after_return ? 1 : 0];
    push(rank, action, 2 * cursor.next);
  }

  void issue_inside(Rank rank, size_t computation) {
    cursors_[rank].any_inside = true;
    push(rank, times_.ranks[rank].computations[computation].action, 2 * computation + 1);
  }

  void push(Rank rank, int action, size_t place) {
    program_.issues[rank].push_back(
        {static_cast<int>(program_.order.size()), action, place % 2 == 1});
    cursors_[rank].places.push_back(place);
  }

  /// What precedes a communication inside of a computation is issued in it, too, at the latest.
  void settle(Rank rank) {
    if (!cursors_[rank].any_inside) return;
    std::vector<size_t>& places = cursors_[rank].places;
    std::vector<Issue>& issues = program_.issues[rank];
    for (size_t index = places.size(); index-- > 1;) {
      if (places[index - 1] <= places[index]) continue;
      places[index - 1] = places[index];
      issues[index - 1].action = issues[index].action;
      issues[index - 1].inside = issues[index].inside;
    }
  }

  Program& program_;
  CallTimes times_;
  std::vector<uint32_t> first_users_;              // [value]
  std::vector<std::vector<size_t>> completed_by_;  // [reduction][rank of it]
  std::vector<Found> found_;
  std::vector<Cursor> cursors_;  // [rank]
};

}  // namespace

void put_in_order(Program& program, const Plan& plan, const ir::Graph& graph,
                  const Placement& placement) {
  Order(program, plan, graph, placement).write();
}

}  // namespace rannc::plan
