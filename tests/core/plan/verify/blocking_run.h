#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "plan/verify/rendezvous.h"
#include "rannc/plan/program.h"

namespace rannc::plan {

/// An execution of a Program on ranks whose communication has no buffers, written apart from
/// verify(). Each rank has a host that launches in the order of issues and never waits for what
/// runs, but cannot launch what takes something that it has not launched yet; and streams, whose
/// work goes in the order of its launches. A communication runs when it is at the head of a stream
/// on each of its ranks. Every rank moves on while it can.
///
/// With several places each rank is a group that computes together: all its places go through the
/// rank's list, and exchange numbers with each other within every computation, of which the rest
/// waits for them. What the Program sends and sums goes between ranks of equal place.
class BlockingRun {
 public:
  /// `alike`: all places have an exchange in front of what is issued inside of a computation; else
  /// every second place issues that first, and of every second group the others do.
  BlockingRun(const Program& program, const ir::Graph& graph, Extent extent, Blocking blocking,
              int places = 1, bool alike = true)
      : program_(program),
        graph_(graph),
        one_stream_(blocking == Blocking::everything),
        places_(places) {
    for (int member = 0; member < program.ranks() * places; ++member) {
      Machine& machine = machines_.emplace_back();
      machine.streams.resize(one_stream_ ? 1 : 4);
      machine.to_launch =
          list(member / places, extent, alike || (member % places + member / places) % 2 == 0);
    }
  }

  bool ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int member = 0; member < static_cast<int>(machines_.size()); ++member) {
        while (launch(member)) moved = true;
        for (auto& stream : machines_[static_cast<size_t>(member)].streams) {
          while (!stream.empty() && run(member, stream)) moved = true;
        }
      }
    }
    return std::ranges::all_of(machines_, [](const Machine& machine) {
      return machine.to_launch.empty() &&
             std::ranges::all_of(machine.streams,
                                 [](const auto& stream) { return stream.empty(); });
    });
  }

 private:
  enum class What { communicate, forward, backward, leave, exchange };
  /// A communication by its place; a part of a forward or backward by stage, micro-batch and
  /// number; the return of the outputs; or an exchange within a group by its number.
  using Work = std::tuple<What, int, int, int>;
  struct Machine {
    std::deque<Work> to_launch;
    std::set<Work> launched, done;
    std::vector<std::deque<Work>> streams;
  };

  /// Places of the gathers in a pass of a stage, in the order in which its nodes run.
  std::vector<int> gathers(What pass, int stage) const {
    const Direction direction = pass == What::forward ? Direction::forward : Direction::backward;
    std::vector<std::pair<int, int>> found;
    for (size_t place = 0; place < program_.order.size(); ++place) {
      const Communication& one = program_.order[place];
      if (one.kind != CommunicationKind::statistics || one.index != stage) continue;
      if (one.direction == direction) found.emplace_back(one.part, static_cast<int>(place));
    }
    std::ranges::sort(found);
    if (direction == Direction::backward) std::ranges::reverse(found);
    std::vector<int> places;
    for (const auto& [node, place] : found) places.push_back(place);
    return places;
  }

  std::deque<Work> list(Rank rank, Extent extent, bool exchange_first) const {
    std::deque<Work> all;
    int exchanges = 0;
    const auto exchange = [&] {
      if (places_ > 1) all.push_back({What::exchange, exchanges++, 0, 0});
    };
    const auto& actions = program_.actions[static_cast<size_t>(rank)];
    const auto& issues = program_.issues[static_cast<size_t>(rank)];
    const auto communicate = [&](int place) {
      const bool sum = program_.order[static_cast<size_t>(place)].kind == CommunicationKind::bucket;
      if (extent != Extent::without_sums || !sum) all.push_back({What::communicate, place, 0, 0});
    };
    for (int at = 0; at <= static_cast<int>(actions.size()); ++at) {
      for (const Issue& issue : issues) {
        if (issue.action == at && !issue.inside) communicate(issue.place);
      }
      if (at == static_cast<int>(actions.size())) break;
      const Action& action = actions[static_cast<size_t>(at)];
      if (action.kind == ActionKind::return_outputs) {
        all.push_back({What::leave, 0, 0, 0});
        if (extent == Extent::forward_only) return all;
      }
      if (action.kind != ActionKind::forward && action.kind != ActionKind::backward) continue;
      const What pass = action.kind == ActionKind::forward ? What::forward : What::backward;
      const std::vector<int> own = gathers(pass, action.stage);
      int part = 0;
      const auto compute_to = [&](int last) {
        for (; part <= last; ++part) {
          all.push_back({pass, action.stage, action.micro_batch, part});
          exchange();
        }
      };
      compute_to(0);
      for (const Issue& issue : issues) {
        if (issue.action != at || !issue.inside) continue;
        if (exchange_first) exchange();
        communicate(issue.place);
        if (!exchange_first) exchange();
        const auto found = std::ranges::find(own, issue.place);
        if (found != own.end()) compute_to(static_cast<int>(found - own.begin()) + 1);
      }
      compute_to(static_cast<int>(own.size()));
    }
    return all;
  }

  /// The part of the last backward of `stage` after which no node adds to the bucket's gradients.
  int part_of(const Communication& bucket, int stage) const {
    const auto& parameters = program_.reductions[static_cast<size_t>(bucket.index)].parameters;
    std::set<ir::ValueId> members;
    for (size_t parameter :
         program_.buckets[static_cast<size_t>(bucket.index)][static_cast<size_t>(bucket.part)]
             .parameters) {
      members.insert(parameters[parameter]);
    }
    uint32_t node = 0;
    const auto reads = [&](ir::ValueId operand) { return members.contains(operand); };
    while (node < graph_.nodes.size() && std::ranges::none_of(graph_.operands({node}), reads)) {
      ++node;
    }
    if (node == graph_.nodes.size()) node = 0;
    int part = 0;
    for (int place : gathers(What::backward, stage)) {
      part += program_.order[static_cast<size_t>(place)].part >= static_cast<int>(node) ? 1 : 0;
    }
    return part;
  }

  /// What must be done on `rank` before the work begins there.
  std::vector<Work> inputs_of(Rank rank, const Work& work) const {
    const auto& [what, first, micro_batch, part] = work;
    std::vector<Work> inputs;
    if (what == What::exchange) return inputs;  // what is before it on the stream that computes
    if (what == What::communicate) return inputs_of_communication(rank, first);
    if (what != What::leave && part > 0) {
      inputs.push_back({what, first, micro_batch, part - 1});
      inputs.push_back(
          {What::communicate, gathers(what, first)[static_cast<size_t>(part) - 1], 0, 0});
      return inputs;
    }
    for (size_t place = 0; place < program_.order.size(); ++place) {
      const Communication& one = program_.order[place];
      const Work arrival{What::communicate, static_cast<int>(place), 0, 0};
      if (one.kind == CommunicationKind::transfer) {
        const Transfer& transfer = program_.transfers[static_cast<size_t>(one.index)];
        const bool forward = one.direction == Direction::forward;
        const int stage = forward ? transfer.to_stage : transfer.from_stage;
        if (rank != (forward ? transfer.to : transfer.from)) continue;
        const bool wanted = what == What::leave
                                ? forward && stage == kUser
                                : forward == (what == What::forward) && stage == first &&
                                      transfer.micro_batch == micro_batch;
        if (wanted) inputs.push_back(arrival);
      }
      if (what != What::leave) continue;
      const bool replica =
          one.kind == CommunicationKind::buffers &&
          std::ranges::count(program_.stage_ranks[static_cast<size_t>(one.index)], rank) > 0;
      if (replica || one.kind == CommunicationKind::outputs) inputs.push_back(arrival);
    }
    return inputs;
  }

  std::vector<Work> inputs_of_communication(Rank rank, int place) const {
    const Communication& one = program_.order[static_cast<size_t>(place)];
    std::vector<Work> inputs;
    const auto all = [&](What pass, const std::vector<int>& stages) {
      for (const Action& action : program_.actions[static_cast<size_t>(rank)]) {
        const bool same =
            action.kind == (pass == What::forward ? ActionKind::forward : ActionKind::backward);
        if (!same || !std::ranges::count(stages, action.stage)) continue;
        const auto last = static_cast<int>(gathers(pass, action.stage).size());
        inputs.push_back({pass, action.stage, action.micro_batch, last});
      }
    };
    switch (one.kind) {
      case CommunicationKind::transfer: {
        const Transfer& transfer = program_.transfers[static_cast<size_t>(one.index)];
        const bool forward = one.direction == Direction::forward;
        const What pass = forward ? What::forward : What::backward;
        const int stage = forward ? transfer.from_stage : transfer.to_stage;
        if (rank != (forward ? transfer.from : transfer.to)) break;
        if (stage != kUser) {
          inputs.push_back(
              {pass, stage, transfer.micro_batch, static_cast<int>(gathers(pass, stage).size())});
        } else if (!forward) {
          inputs.push_back({What::leave, 0, 0, 0});
        }
        break;
      }
      case CommunicationKind::statistics: {
        const What pass = one.direction == Direction::forward ? What::forward : What::backward;
        const std::vector<int> own = gathers(pass, one.index);
        const auto number = static_cast<int>(std::ranges::find(own, place) - own.begin());
        inputs.push_back({pass, one.index, 0, number});
        break;
      }
      case CommunicationKind::buffers:
        all(What::forward, {one.index});
        break;
      case CommunicationKind::outputs: {
        std::vector<int> stages;
        for (int stage = 0; stage < program_.stages(); ++stage) stages.push_back(stage);
        all(What::forward, stages);
        break;
      }
      case CommunicationKind::bucket:
        all(What::backward, program_.reductions[static_cast<size_t>(one.index)].stages);
        // Of the last one only as much as it takes.
        if (!inputs.empty()) std::get<3>(inputs.back()) = part_of(one, std::get<1>(inputs.back()));
        break;
    }
    return inputs;
  }

  const std::vector<Work>& inputs(Rank rank, const Work& work) {
    const auto [found, is_new] = inputs_.try_emplace({rank, work});
    if (is_new) found->second = inputs_of(rank, work);
    return found->second;
  }

  bool launch(int member) {
    const Rank rank = member / places_;
    Machine& machine = machines_[static_cast<size_t>(member)];
    if (machine.to_launch.empty()) return false;
    const Work work = machine.to_launch.front();
    const auto launched = [&](const Work& input) { return machine.launched.contains(input); };
    if (!std::ranges::all_of(inputs(rank, work), launched)) return false;
    size_t stream = 0;
    if (!one_stream_ && std::get<0>(work) == What::communicate) {
      const Communication& one = program_.order[static_cast<size_t>(std::get<1>(work))];
      const bool forward = one.direction == Direction::forward;
      stream = one.kind != CommunicationKind::transfer ? 3 : forward ? 1 : 2;
    }
    machine.streams[stream].push_back(work);
    machine.launched.insert(work);
    machine.to_launch.pop_front();
    return true;
  }

  bool can_run(int member, const Work& work) {
    Machine& machine = machines_[static_cast<size_t>(member)];
    const auto done = [&](const Work& input) { return machine.done.contains(input); };
    return std::ranges::all_of(inputs(member / places_, work), done);
  }

  std::vector<Rank> ranks_of(int place) const {
    const Communication& one = program_.order[static_cast<size_t>(place)];
    std::set<Rank> ranks;
    if (one.kind == CommunicationKind::transfer) {
      const Transfer& transfer = program_.transfers[static_cast<size_t>(one.index)];
      ranks = {transfer.from, transfer.to};
    } else if (one.kind == CommunicationKind::bucket) {
      const auto& members = program_.reductions[static_cast<size_t>(one.index)].ranks;
      ranks.insert(members.begin(), members.end());
    } else if (one.kind == CommunicationKind::outputs) {
      for (Rank rank = 0; rank < program_.ranks(); ++rank) ranks.insert(rank);
    } else {
      const auto& replicas = program_.stage_ranks[static_cast<size_t>(one.index)];
      ranks.insert(replicas.begin(), replicas.end());
    }
    return {ranks.begin(), ranks.end()};
  }

  /// Whom `member` meets in the work.
  std::vector<int> members_of(int member, const Work& work) const {
    std::vector<int> members;
    if (std::get<0>(work) == What::exchange) {
      for (int place = 0; place < places_; ++place) {
        members.push_back(member / places_ * places_ + place);
      }
      return members;
    }
    for (Rank rank : ranks_of(std::get<1>(work))) {
      members.push_back(rank * places_ + member % places_);
    }
    return members;
  }

  /// The head of a stream.
  bool run(int member, std::deque<Work>& stream) {
    const Work work = stream.front();
    if (std::get<0>(work) != What::communicate && std::get<0>(work) != What::exchange) {
      if (!can_run(member, work)) return false;
      machines_[static_cast<size_t>(member)].done.insert(work);
      stream.pop_front();
      return true;
    }
    std::vector<std::pair<int, std::deque<Work>*>> heads;
    const std::vector<int> members = members_of(member, work);
    for (int each : members) {
      if (!can_run(each, work)) return false;
      for (auto& other : machines_[static_cast<size_t>(each)].streams) {
        if (!other.empty() && other.front() == work) heads.emplace_back(each, &other);
      }
    }
    if (heads.size() < members.size()) return false;
    for (auto& [each, head] : heads) {
      head->pop_front();
      machines_[static_cast<size_t>(each)].done.insert(work);
    }
    return true;
  }

  const Program& program_;
  const ir::Graph& graph_;
  bool one_stream_;
  int places_;
  std::vector<Machine> machines_;
  std::map<std::pair<Rank, Work>, std::vector<Work>> inputs_;
};

}  // namespace rannc::plan
