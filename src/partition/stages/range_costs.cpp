#include "partition/stages/range_costs.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "partition/problem/state_bytes.h"
#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

/// A thing that counts once in a range, no matter how many of its uses are in it. Block `use` is
/// the first use of it in [first, last) when `previous < first <= use < last`.
struct Use {
  int previous;  ///< the use before (or the producer), -1 for none
  size_t what;
};

void add(cost::Size& sum, const cost::Size& size) {
  sum.bytes_per_row += size.bytes_per_row;
  sum.fixed_bytes += size.fixed_bytes;
}

}  // namespace

RangeCosts::RangeCosts(const cost::GraphProfile& blocks, const Request& request,
                       const BlockCosts& costs, const Moments* moments,
                       const std::vector<uint32_t>& order)
    : blocks_(static_cast<int>(blocks.nodes.size())), costs_(costs), moments_(moments) {
  RANNC_CHECK(costs.blocks() == blocks.nodes.size(), "the costs are of other blocks");
  const auto cells = static_cast<size_t>(blocks_) * static_cast<size_t>(blocks_);
  parameters_.resize(cells);
  borders_.resize(cells);
  fill_parameters(blocks, request);
  fill_borders(blocks);
  if (moments_ != nullptr) find_shared(order);
}

RangeCosts::RangeCosts(const cost::GraphProfile& blocks, const Request& request,
                       const BlockCosts& costs, std::vector<BlockSet> sets, const Moments* moments)
    : blocks_(static_cast<int>(blocks.nodes.size())),
      costs_(costs),
      moments_(moments),
      sets_(std::move(sets)) {
  RANNC_CHECK(costs.blocks() == blocks.nodes.size(), "the costs are of other blocks");
  number_ranges();
  fill_given(blocks, request);
}

void RangeCosts::find_shared(const std::vector<uint32_t>& order) {
  order_ = order;
  follows_file_ = moments_->follow_the_file(order);
  std::vector<int> position(order.size());
  for (size_t k = 0; k < order.size(); ++k) position[order[k]] = static_cast<int>(k);
  shared_uses_.resize(order.size());
  for (size_t storage = 0; storage < moments_->shared().size(); ++storage) {
    std::vector<int> users;
    for (const uint32_t block : moments_->shared()[storage].blocks) {
      users.push_back(position[block]);
    }
    std::ranges::sort(users);
    for (size_t k = 1; k < users.size(); ++k) {
      shared_uses_[static_cast<size_t>(users[k])].push_back({users[k - 1], storage});
    }
  }
}

std::vector<uint32_t> RangeCosts::members(int first, int last) const {
  std::vector<uint32_t> result;
  for (int block = is_line() ? first : 0; block < (is_line() ? last : blocks_); ++block) {
    const auto k = static_cast<size_t>(block);
    const bool inside = is_line() || (sets_[static_cast<size_t>(last)].test(k) &&
                                      !sets_[static_cast<size_t>(first)].test(k));
    if (inside) result.push_back(static_cast<uint32_t>(block));
  }
  return result;
}

const RangeCosts::Table& RangeCosts::at_rows(int64_t rows) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Table>& entry = tables_[rows];
  if (!entry) entry = std::make_unique<Table>(*this, costs_.at(rows), rows);
  return *entry;
}

RangeCosts::Table::Table(const RangeCosts& ranges, const BlockCosts::AtRows& costs, int64_t rows)
    : ranges_(ranges) {
  if (ranges.moments_ != nullptr) fill_held(rows);
  if (!ranges.is_line()) {
    fill_given(costs);
    return;
  }
  const size_t count = costs.forward_ns.size();
  for (std::vector<double>* prefix : {&forward_, &backward_, &saved_}) {
    prefix->assign(count + 1, 0.0);
  }
  for (size_t block = 0; block < count; ++block) {
    forward_[block + 1] = forward_[block] + costs.forward_ns[block];
    backward_[block + 1] = backward_[block] + costs.backward_ns[block];
    saved_[block + 1] = saved_[block] + costs.saved_bytes[block];
  }
  if (!costs.forward_host_ns.empty()) {
    forward_host_.assign(count + 1, 0.0);
    backward_host_ = forward_host_;
    for (size_t block = 0; block < count; ++block) {
      forward_host_[block + 1] = forward_host_[block] + costs.forward_host_ns[block];
      backward_host_[block + 1] = backward_host_[block] + costs.backward_host_ns[block];
    }
  }
  workspace_.push_back(costs.workspace_bytes);
  for (size_t width = 1; 2 * width <= count; width *= 2) {
    const std::vector<double>& half = workspace_.back();
    std::vector<double> whole(count - 2 * width + 1);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = std::max(half[i], half[i + width]);
    workspace_.push_back(std::move(whole));
  }
}

void RangeCosts::Table::fill_held(int64_t rows) {
  const auto count = static_cast<size_t>(ranges_.blocks_);
  std::vector<int> stage_of(count);
  std::iota(stage_of.begin(), stage_of.end(), 0);
  alone_ = ranges_.moments_->stages(stage_of, count, std::vector<int64_t>(count, rows));
  const std::vector<Moments::Shared>& shared = ranges_.moments_->shared();
  for (const Moments::Shared& storage : shared) {
    shared_bytes_.push_back(
        cost::cost_at(storage.bytes, ranges_.moments_->points(), static_cast<double>(rows)));
  }
  for (const Value& value : ranges_.values_) {
    gradient_bytes_.push_back(value.grad ? value.size.at(static_cast<double>(rows)) : 0.0);
  }
  if (ranges_.is_line()) return;
  std::vector<double> own;  // [block] what no other saves
  for (const Held& held : alone_) own.push_back(held.saved_bytes);
  std::vector<BlockSet> users(shared.size());
  for (size_t storage = 0; storage < shared.size(); ++storage) {
    for (const uint32_t block : shared[storage].blocks) {
      own[block] -= shared_bytes_[storage];
      users[storage].set(block);
    }
  }
  held_saved_.assign(ranges_.parameters_.size(), 0);
  for (int first = 0; first < ranges_.end(); ++first) {
    for (int last = first + 1; last <= ranges_.end(); ++last) {
      if (!ranges_.nested(first, last)) continue;
      const BlockSet inside =
          ranges_.sets_[static_cast<size_t>(last)] & ~ranges_.sets_[static_cast<size_t>(first)];
      double& here = held_saved_[ranges_.at(first, last)];
      for (size_t block = 0; block < own.size(); ++block) {
        if (inside.test(block)) here += std::max(own[block], 0.0);
      }
      for (size_t storage = 0; storage < users.size(); ++storage) {
        if ((users[storage] & inside).any()) here += shared_bytes_[storage];
      }
    }
  }
}

RangeCosts::Walk::Walk(const Table& table, int first, Figure figure)
    : table_(table), first_(first), last_(first), figure_(figure) {
  RANNC_CHECK(figure == Figure::least || table.ranges_.follows_file(), "no figure of the most");
}

const RangeCosts::Held& RangeCosts::Walk::to(int last) {
  const RangeCosts& ranges = table_.ranges_;
  if (ranges.moments_ == nullptr) return held_;
  if (ranges.is_line()) {
    while (last_ < last) figure_ == Figure::least ? extend() : extend_most();
    return held_;
  }
  held_.saved_bytes = held_.later_bytes = table_.held_saved_[ranges.at(first_, last)];
  held_.gradient_bytes = ranges.parameters(first_, last).gradient_bytes;
  held_.first_bytes = held_.saved_bytes;
  return held_;
}

/// One block more behind the range. Its backward comes first, and finds all that is saved in front
/// of it; the others then find its gradients. Values that cross the border are left out, so that a
/// larger range may hold more than this, never less.
void RangeCosts::Walk::extend() {
  const RangeCosts& ranges = table_.ranges_;
  const auto k = static_cast<size_t>(last_);
  const Held& block = table_.alone_[ranges.order_[k]];
  const double shared = shared_bytes(k);
  ++last_;
  const double gradients = ranges.parameters(first_, last_).gradient_bytes;
  const double more = gradients - held_.gradient_bytes;
  const double before = held_.saved_bytes - shared, first_before = held_.first_bytes;
  held_.saved_bytes = before + block.saved_bytes;
  held_.gradient_bytes = gradients;
  if (!ranges.follows_file_) {
    held_.first_bytes = held_.later_bytes = held_.saved_bytes;
    return;
  }
  const bool is_first = last_ == first_ + 1;
  held_.first_bytes = before + block.first_bytes;
  if (!is_first) held_.first_bytes = std::max(held_.first_bytes, first_before + more);
  held_.later_bytes = std::max(held_.later_bytes, before + block.later_bytes);
}

/// The same with all that crosses borders of blocks: a gradient waits in each block between the one
/// that makes the value, or the first, and the last that uses it. What blocks share is there with
/// the first of them and with each other, and gradients of tied parameters are made by all.
void RangeCosts::Walk::extend_most() {
  const RangeCosts& ranges = table_.ranges_;
  const auto k = static_cast<size_t>(last_);
  const Held& block = table_.alone_[ranges.order_[k]];
  double entered = 0;
  for (const size_t value : ranges.read_[k]) {
    if (ranges.values_[value].producer < first_) {
      entered += table_.gradient_bytes_[value];
    } else if (ranges.values_[value].last_use == last_) {
      open_bytes_ -= table_.gradient_bytes_[value];
    }
  }
  const double before = held_.saved_bytes + open_bytes_;
  const bool is_first = last_ == first_;
  const double first_before = held_.first_bytes + block.gradient_bytes + entered;
  held_.first_bytes = before + block.first_bytes;
  if (!is_first) held_.first_bytes = std::max(held_.first_bytes, first_before);
  held_.later_bytes = std::max(held_.later_bytes + entered, before + block.later_bytes);
  held_.saved_bytes += block.saved_bytes - shared_bytes(k);
  for (const size_t value : ranges.made_[k]) {
    if (ranges.values_[value].last_use > last_) open_bytes_ += table_.gradient_bytes_[value];
  }
  ++last_;
  held_.gradient_bytes = ranges.parameters(first_, last_).gradient_bytes;
}

/// Of memory that the block saves, what blocks of the range before it save, too.
double RangeCosts::Walk::shared_bytes(size_t block) const {
  double bytes = 0;
  for (const SharedUse& use : table_.ranges_.shared_uses_[block]) {
    if (use.previous >= first_) bytes += table_.shared_bytes_[use.storage];
  }
  return bytes;
}

void RangeCosts::Table::fill_given(const BlockCosts::AtRows& costs) {
  for (const BlockSet& set : ranges_.sets_) {
    double forward = 0, backward = 0, saved = 0;
    for (size_t block = 0; block < costs.forward_ns.size(); ++block) {
      if (!set.test(block)) continue;
      forward += costs.forward_ns[block];
      backward += costs.backward_ns[block];
      saved += costs.saved_bytes[block];
    }
    forward_.push_back(forward);
    backward_.push_back(backward);
    saved_.push_back(saved);
    if (costs.forward_host_ns.empty()) continue;
    double forward_host = 0, backward_host = 0;
    for (size_t block = 0; block < costs.forward_host_ns.size(); ++block) {
      if (!set.test(block)) continue;
      forward_host += costs.forward_host_ns[block];
      backward_host += costs.backward_host_ns[block];
    }
    forward_host_.push_back(forward_host);
    backward_host_.push_back(backward_host);
  }
  std::vector<double>& largest = workspace_.emplace_back(ranges_.parameters_.size(), 0.0);
  for (int first = 0; first < ranges_.end(); ++first) {
    for (int last = first + 1; last <= ranges_.end(); ++last) {
      if (!ranges_.nested(first, last)) continue;
      double& here = largest[ranges_.at(first, last)];
      const BlockSet inside =
          ranges_.sets_[static_cast<size_t>(last)] & ~ranges_.sets_[static_cast<size_t>(first)];
      for (size_t block = 0; block < costs.workspace_bytes.size(); ++block) {
        if (inside.test(block)) here = std::max(here, costs.workspace_bytes[block]);
      }
    }
  }
}

RangeCosts::Work RangeCosts::Table::work(int first, int last) const {
  const auto i = static_cast<size_t>(first), j = static_cast<size_t>(last);
  if (!ranges_.is_line()) {
    return {forward_ns(i, j), backward_ns(i, j), saved_[j] - saved_[i],
            workspace_.front()[ranges_.at(first, last)]};
  }
  const auto level = static_cast<size_t>(std::bit_width(j - i) - 1);
  const std::vector<double>& largest = workspace_[level];
  return {forward_ns(i, j), backward_ns(i, j), saved_[j] - saved_[i],
          std::max(largest[i], largest[j - (size_t{1} << level)])};
}

void RangeCosts::number_ranges() {
  range_of_.assign(sets_.size() * sets_.size(), -1);
  int32_t ranges = 0;
  for (size_t first = 0; first < sets_.size(); ++first) {
    for (size_t last = first + 1; last < sets_.size(); ++last) {
      if ((sets_[first] & ~sets_[last]).any()) continue;
      range_of_[cell(static_cast<int>(first), static_cast<int>(last))] = ranges++;
    }
  }
  parameters_.resize(static_cast<size_t>(ranges));
  borders_.resize(static_cast<size_t>(ranges));
}

void RangeCosts::fill_given(const cost::GraphProfile& blocks, const Request& request) {
  struct Value {
    cost::Size size;
    bool grad;
    size_t producer;
    BlockSet users;
  };
  std::vector<std::vector<size_t>> made(blocks.nodes.size());
  std::vector<Value> values;
  std::vector<BlockSet> param_users(blocks.params.size()), input_users(blocks.inputs.size());
  for (size_t block = 0; block < blocks.nodes.size(); ++block) {
    const cost::ProfileNode& node = blocks.nodes[block];
    for (const cost::ProfileOutput& output : node.outputs) {
      made[block].push_back(values.size());
      values.push_back({output.size, output.grad, block, {}});
    }
    for (const uint32_t param : node.params) param_users[param].set(block);
    for (const cost::ProfileUse& use : node.inputs) {
      BlockSet& users =
          use.is_input ? input_users[use.node] : values[made[use.node][use.output]].users;
      users.set(block);
    }
  }
  for (int first = 0; first < end(); ++first) {
    for (int last = first + 1; last <= end(); ++last) {
      if (!nested(first, last)) continue;
      const BlockSet& before = sets_[static_cast<size_t>(first)];
      const BlockSet inside = sets_[static_cast<size_t>(last)] & ~before;
      const BlockSet behind = ~sets_[static_cast<size_t>(last)];
      Parameters& params = parameters_[at(first, last)];
      for (size_t param = 0; param < param_users.size(); ++param) {
        if ((param_users[param] & inside).none()) continue;
        const StateBytes state = state_of(blocks.params[param], request);
        params.bytes += state.param_bytes;
        params.gradient_bytes += state.gradient_bytes;
        params.optimizer_bytes += state.optimizer_bytes;
        const bool tied = (param_users[param] & ~inside).any();
        (tied ? params.tied_gradient_bytes : params.own_gradient_bytes) += state.gradient_bytes;
      }
      Border& border = borders_[at(first, last)];
      for (size_t input = 0; input < input_users.size(); ++input) {
        if ((input_users[input] & inside).any()) add(border.graph_in, blocks.inputs[input].size);
      }
      for (const Value& value : values) {
        if (before.test(value.producer) && (value.users & inside).any()) {
          add(border.in, value.size);
          border.enters = true;
          if (value.grad) add(border.in_grad, value.size);
          border.enters_grad |= value.grad;
        }
        if (inside.test(value.producer) && (value.users & behind).any()) {
          add(border.out, value.size);
          border.leaves = true;
          if (value.grad) add(border.out_grad, value.size);
          border.leaves_grad |= value.grad;
        }
      }
    }
  }
}

// Sums grow by addition only, range by range: differences of sums would leave a remainder of
// rounding in ranges that nothing enters.
void RangeCosts::fill_parameters(const cost::GraphProfile& blocks, const Request& request) {
  std::vector<int> first_use(blocks.params.size(), -1), last_use(blocks.params.size(), -1);
  std::vector<std::vector<Use>> uses(static_cast<size_t>(blocks_));
  for (int block = 0; block < blocks_; ++block) {
    for (const uint32_t param : blocks.nodes[static_cast<size_t>(block)].params) {
      uses[static_cast<size_t>(block)].push_back({last_use[param], param});
      if (first_use[param] < 0) first_use[param] = block;
      last_use[param] = block;
    }
  }
  for (int first = 0; first < blocks_; ++first) {
    Parameters sum;
    for (int last = first + 1; last <= blocks_; ++last) {
      for (const Use& use : uses[static_cast<size_t>(last - 1)]) {
        if (use.previous >= first) continue;
        const StateBytes state = state_of(blocks.params[use.what], request);
        sum.bytes += state.param_bytes;
        sum.gradient_bytes += state.gradient_bytes;
        sum.optimizer_bytes += state.optimizer_bytes;
      }
      Parameters& cell = parameters_[at(first, last)];
      cell = sum;
    }
  }
  // Tied parameters are few, so each is looked at again in each range that ends at a use of it.
  for (int first = 0; first < blocks_; ++first) {
    double own = 0;
    std::vector<size_t> shared;  // used in the range so far, and also outside of it so far
    for (int last = first + 1; last <= blocks_; ++last) {
      for (const Use& use : uses[static_cast<size_t>(last - 1)]) {
        const cost::ProfileParam& param = blocks.params[use.what];
        if (!param.trainable || param.bytes <= 0) continue;
        if (use.previous < first) shared.push_back(use.what);
        if (first_use[use.what] >= first && last_use[use.what] == last - 1) {
          std::erase(shared, use.what);
          own += param.bytes * request.gradient_bytes_per_param_byte;
        }
      }
      Parameters& cell = parameters_[at(first, last)];
      cell.own_gradient_bytes = own;
      for (const size_t param : shared) {
        cell.tied_gradient_bytes +=
            blocks.params[param].bytes * request.gradient_bytes_per_param_byte;
      }
    }
  }
}

void RangeCosts::fill_borders(const cost::GraphProfile& blocks) {
  const auto count = static_cast<size_t>(blocks_);
  made_.resize(count);
  read_.resize(count);
  for (int block = 0; block < blocks_; ++block) {
    for (const cost::ProfileOutput& output : blocks.nodes[static_cast<size_t>(block)].outputs) {
      made_[static_cast<size_t>(block)].push_back(values_.size());
      values_.push_back({output.size, output.grad, block, block});
    }
  }
  std::vector<std::vector<Use>> reads(count), input_reads(count);
  std::vector<int> input_last(blocks.inputs.size(), -1);
  for (int block = 0; block < blocks_; ++block) {
    for (const cost::ProfileUse& use : blocks.nodes[static_cast<size_t>(block)].inputs) {
      if (use.is_input) {
        if (input_last[use.node] == block) continue;
        input_reads[static_cast<size_t>(block)].push_back({input_last[use.node], use.node});
        input_last[use.node] = block;
        continue;
      }
      const size_t what = made_[use.node][use.output];
      Value& value = values_[what];
      if (value.last_use == block) continue;
      reads[static_cast<size_t>(block)].push_back({value.last_use, what});
      read_[static_cast<size_t>(block)].push_back(what);
      value.last_use = block;
    }
  }
  for (int first = 0; first < blocks_; ++first) {
    Border sum;
    for (int last = first + 1; last <= blocks_; ++last) {
      for (const Use& use : input_reads[static_cast<size_t>(last - 1)]) {
        if (use.previous < first) add(sum.graph_in, blocks.inputs[use.what].size);
      }
      for (const Use& use : reads[static_cast<size_t>(last - 1)]) {
        if (use.previous >= first) continue;
        const Value& value = values_[use.what];
        add(sum.in, value.size);
        sum.enters = true;
        if (!value.grad) continue;
        add(sum.in_grad, value.size);
        sum.enters_grad = true;
      }
      borders_[at(first, last)] = sum;
    }
  }
  for (int last = 1; last <= blocks_; ++last) {
    Border sum;
    for (int first = last - 1; first >= 0; --first) {
      for (const size_t index : made_[static_cast<size_t>(first)]) {
        const Value& value = values_[index];
        if (value.last_use < last) continue;
        add(sum.out, value.size);
        sum.leaves = true;
        if (!value.grad) continue;
        add(sum.out_grad, value.size);
        sum.leaves_grad = true;
      }
      Border& cell = borders_[at(first, last)];
      cell.out = sum.out;
      cell.out_grad = sum.out_grad;
      cell.leaves = sum.leaves;
      cell.leaves_grad = sum.leaves_grad;
    }
  }
}

}  // namespace rannc::partition
