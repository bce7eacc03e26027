#include "partition/blocks/moments.h"

#include <algorithm>
#include <limits>

namespace rannc::partition {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

void add(cost::Size& sum, const cost::Size& size, double sign) {
  sum.bytes_per_row += sign * size.bytes_per_row;
  sum.fixed_bytes += sign * size.fixed_bytes;
}

}  // namespace

Moments::Moments(const cost::GraphProfile& profile,
                 const std::vector<std::vector<uint32_t>>& blocks, const Request& request)
    : profile_(profile) {
  find_blocks(blocks);
  find_storages();
  find_gradients(request);
  find_values();
  split();
}

void Moments::find_blocks(const std::vector<std::vector<uint32_t>>& blocks) {
  const size_t nodes = profile_.nodes.size();
  block_of_.resize(nodes);
  begins_.assign(nodes + 1, false);
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    for (const uint32_t node : blocks[block]) block_of_[node] = block;
    const auto [first, last] = std::ranges::minmax(blocks[block]);
    first_node_.push_back(first);
    last_node_.push_back(last);
  }
  for (size_t node = 0; node < nodes; ++node) {
    begins_[node] = node == 0 || block_of_[node] != block_of_[node - 1];
  }
}

void Moments::find_storages() {
  for (const cost::SavedStorage& storage : profile_.saved) {
    std::vector<Place> users;
    for (const uint32_t node : storage.nodes) {
      if (std::ranges::find(users, block_of_[node], &Place::block) == users.end()) {
        users.push_back({block_of_[node], node});
      }
    }
    if (users.size() == 1) {
      own_storages_.emplace_back(users.front().segment, &storage.bytes);
      continue;
    }
    Shared shared{.blocks = {}, .bytes = storage.bytes};
    for (const Place& user : users) {
      shared.blocks.push_back(user.block);
      begins_[user.segment] = true;
    }
    std::ranges::sort(shared.blocks);
    shared_.push_back(std::move(shared));
    shared_users_.push_back(std::move(users));
  }
}

void Moments::find_gradients(const Request& request) {
  own_gradients_.assign(profile_.nodes.size(), 0);
  std::vector<std::vector<Place>> users(profile_.params.size());
  for (uint32_t node = 0; node < profile_.nodes.size(); ++node) {
    for (const uint32_t param : profile_.nodes[node].params) {
      if (!profile_.params[param].trainable) continue;
      const auto known = std::ranges::find(users[param], block_of_[node], &Place::block);
      if (known == users[param].end()) {
        users[param].push_back({block_of_[node], node});
      } else {
        known->segment = node;
      }
    }
  }
  for (size_t param = 0; param < users.size(); ++param) {
    const double bytes = profile_.params[param].bytes * request.gradient_bytes_per_param_byte;
    if (users[param].empty() || bytes <= 0) continue;
    if (users[param].size() == 1) {
      own_gradients_[users[param].front().segment] += bytes;
      continue;
    }
    for (const Place& user : users[param]) {
      begins_[user.segment] = true;
      begins_[user.segment + 1] = true;
    }
    tied_.push_back({bytes, std::move(users[param])});
  }
}

void Moments::find_values() {
  const size_t nodes = profile_.nodes.size();
  std::vector<std::vector<std::vector<Place>>> users(nodes);
  for (uint32_t node = 0; node < nodes; ++node) {
    users[node].resize(profile_.nodes[node].outputs.size());
    for (const cost::ProfileUse& use : profile_.nodes[node].inputs) {
      if (use.is_input || !profile_.nodes[use.node].outputs[use.output].grad) continue;
      std::vector<Place>& known = users[use.node][use.output];
      const auto same = std::ranges::find(known, block_of_[node], &Place::block);
      if (same == known.end()) {
        known.push_back({block_of_[node], node});
      } else {
        same->segment = node;
      }
    }
  }
  std::vector<uint32_t> run_of;  // nodes of one block that follow each other
  for (uint32_t node = 0; node < nodes; ++node) {
    const bool same = node > 0 && block_of_[node] == block_of_[node - 1];
    run_of.push_back(same ? run_of.back() : node);
  }
  waiting_.assign(nodes + 1, {});
  for (uint32_t node = 0; node < nodes; ++node) {
    for (size_t output = 0; output < users[node].size(); ++output) {
      std::vector<Place>& of = users[node][output];
      if (of.empty()) continue;
      const cost::Size& size = profile_.nodes[node].outputs[output].size;
      const uint32_t last = of.front().segment;
      // Within a block, and no node of another between: the same in every draft.
      if (of.size() == 1 && run_of[node] == run_of[last]) {
        add(waiting_[node + 1], size, 1);
        add(waiting_[last], size, -1);
        continue;
      }
      begins_[node + 1] = true;
      for (const Place& user : of) begins_[user.segment] = true;
      crossing_.push_back({size, {block_of_[node], node}, std::move(of)});
    }
  }
  for (size_t node = 1; node <= nodes; ++node) add(waiting_[node], waiting_[node - 1], 1);
}

void Moments::split() {
  for (uint32_t node = 0; node < profile_.nodes.size(); ++node) {
    if (begins_[node]) {
      begin_.push_back(node);
      segment_gradients_.push_back(0);
    }
    segment_gradients_.back() += own_gradients_[node];
    segment_of_.push_back(static_cast<uint32_t>(begin_.size() - 1));
  }
  begin_.push_back(static_cast<uint32_t>(profile_.nodes.size()));
  const auto number = [&](Place& place) { place.segment = segment_of_[place.segment]; };
  for (std::vector<Place>& users : shared_users_) std::ranges::for_each(users, number);
  for (TiedParam& param : tied_) std::ranges::for_each(param.users, number);
  for (CrossingValue& value : crossing_) {
    number(value.producer);
    std::ranges::for_each(value.users, number);
  }
}

bool Moments::follow_the_file(const std::vector<uint32_t>& order) const {
  for (size_t k = 1; k < order.size(); ++k) {
    if (first_node_[order[k]] < last_node_[order[k - 1]]) return false;
  }
  return true;
}

const Moments::AtRows& Moments::at(int64_t rows) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<AtRows>& entry = known_[rows];
  if (!entry) entry = std::make_unique<AtRows>(measure(static_cast<double>(rows)));
  return *entry;
}

Moments::AtRows Moments::measure(double rows) const {
  const auto at_rows = [&](const std::vector<double>& costs) {
    return costs.empty() ? 0.0 : cost::cost_at(costs, profile_.rows, rows);
  };
  std::vector<double> saved;  // [node]
  for (const cost::ProfileNode& node : profile_.nodes) saved.push_back(at_rows(node.saved_bytes));
  for (const auto& [node, bytes] : own_storages_) saved[node] += at_rows(*bytes);
  AtRows result;
  for (size_t segment = 0; segment + 1 < begin_.size(); ++segment) {
    double held = 0;
    for (uint32_t node = begin_[segment]; node < begin_[segment + 1]; ++node) held += saved[node];
    result.saved.push_back(held);
    double gradients = 0, first = kNothing, later = kNothing;
    for (uint32_t node = begin_[segment + 1]; node-- > begin_[segment];) {
      const cost::ProfileNode& here = profile_.nodes[node];
      const double needed = held + at_rows(here.workspace_bytes) + waiting_[node].at(rows);
      later = std::max(later, needed);
      if (!here.adds_in_place) first = std::max(first, needed + gradients);
      gradients += own_gradients_[node];
      if (here.adds_in_place) first = std::max(first, needed + gradients);
      held -= saved[node];
    }
    result.first.push_back(first - gradients);  // of all of the segment's
    result.later.push_back(later);
  }
  for (const Shared& shared : shared_) result.shared.push_back(at_rows(shared.bytes));
  return result;
}

std::vector<Moments::Stage> Moments::stages(const std::vector<int>& stage_of, size_t groups,
                                            const std::vector<int64_t>& rows) const {
  const size_t count = rows.size(), segments = begin_.size() - 1;
  struct Sums {
    const AtRows* at = nullptr;
    double saved = 0, waiting = 0, made = 0;
    double first = kNothing, later = 0;
  };
  std::vector<Sums> sums(count);
  for (size_t s = 0; s < count; ++s) {
    sums[s].at = s >= groups ? sums[s - groups].at : &at(rows[s]);
  }
  // What comes before a segment, and behind it.
  struct Change {
    double saved = 0, waiting = 0, waiting_behind = 0, gradients = 0;
  };
  std::vector<Change> changes(segments);
  const auto stage = [&](const Place& place) { return static_cast<size_t>(stage_of[place.block]); };
  std::vector<uint32_t> best(count, 0), seen(count, 0);
  uint32_t serial = 0;
  /// Takes each stage's first or last of the places; a stage whose `best` is a place has it.
  const auto choose = [&](const std::vector<Place>& places, bool last) {
    ++serial;
    for (const Place& place : places) {
      const size_t s = stage(place);
      const bool known = seen[s] == serial;
      seen[s] = serial;
      best[s] = !known ? place.segment
                : last ? std::max(best[s], place.segment)
                       : std::min(best[s], place.segment);
    }
  };
  for (size_t k = 0; k < shared_users_.size(); ++k) {
    choose(shared_users_[k], /*last=*/false);
    for (const Place& place : shared_users_[k]) {
      const size_t s = stage(place);
      if (best[s] == place.segment) changes[place.segment].saved += sums[s].at->shared[k];
    }
  }
  for (const TiedParam& param : tied_) {
    choose(param.users, /*last=*/true);
    for (const Place& place : param.users) {
      const size_t s = stage(place);
      bool is_made = best[s] == place.segment;
      for (size_t later = s + groups; later < count; later += groups) {
        is_made &= seen[later] != serial;
      }
      if (is_made) changes[place.segment].gradients += param.gradient_bytes;
    }
  }
  for (const CrossingValue& value : crossing_) {
    const size_t home = stage(value.producer);
    choose(value.users, /*last=*/true);
    bool leaves = false;
    for (const Place& place : value.users) {
      const size_t s = stage(place);
      leaves |= s != home;
      if (best[s] != place.segment || s == home) continue;
      const double bytes = value.size.at(static_cast<double>(rows[s]));
      sums[s].waiting += bytes;
      changes[place.segment].waiting -= bytes;
    }
    const double bytes = value.size.at(static_cast<double>(rows[home]));
    changes[value.producer.segment].waiting_behind += bytes;
    if (!leaves) changes[best[home]].waiting -= bytes;
  }
  for (size_t segment = 0; segment < segments; ++segment) {
    Sums& of = sums[static_cast<size_t>(stage_of[block_of_[begin_[segment]]])];
    const Change& change = changes[segment];
    of.saved += change.saved;
    of.waiting += change.waiting;
    const double held = of.saved + of.waiting;
    // Gradients that are made in front of a segment are not there yet.
    const bool in_place = profile_.nodes[begin_[segment]].adds_in_place;
    const double first =
        held + of.at->first[segment] - of.made - (in_place ? 0.0 : change.gradients);
    of.first = std::max(of.first, first);
    of.later = std::max(of.later, held + of.at->later[segment]);
    of.saved += of.at->saved[segment];
    of.waiting += change.waiting_behind;
    of.made += segment_gradients_[segment] + change.gradients;
  }
  std::vector<Stage> result;
  for (const Sums& of : sums) {
    result.push_back({of.saved, of.first + of.made, of.later, of.made});
  }
  return result;
}

}  // namespace rannc::partition
