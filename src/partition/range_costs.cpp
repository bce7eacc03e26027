#include "partition/range_costs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "partition/state_bytes.h"
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
                       const BlockCosts& costs)
    : blocks_(static_cast<int>(blocks.nodes.size())), costs_(costs) {
  RANNC_CHECK(costs.blocks() == blocks.nodes.size(), "the costs are of other blocks");
  const auto cells = static_cast<size_t>(blocks_) * static_cast<size_t>(blocks_);
  parameters_.resize(cells);
  borders_.resize(cells);
  fill_parameters(blocks, request);
  fill_borders(blocks);
}

const RangeCosts::Table& RangeCosts::at_rows(int64_t rows) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Table>& entry = tables_[rows];
  if (!entry) entry = std::make_unique<Table>(costs_.at(rows));
  return *entry;
}

RangeCosts::Table::Table(const BlockCosts::AtRows& costs) {
  const size_t count = costs.forward_ns.size();
  for (std::vector<double>* prefix : {&forward_, &backward_, &saved_}) {
    prefix->assign(count + 1, 0.0);
  }
  for (size_t block = 0; block < count; ++block) {
    forward_[block + 1] = forward_[block] + costs.forward_ns[block];
    backward_[block + 1] = backward_[block] + costs.backward_ns[block];
    saved_[block + 1] = saved_[block] + costs.saved_bytes[block];
  }
  workspace_.push_back(costs.workspace_bytes);
  for (size_t width = 1; 2 * width <= count; width *= 2) {
    const std::vector<double>& half = workspace_.back();
    std::vector<double> whole(count - 2 * width + 1);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = std::max(half[i], half[i + width]);
    workspace_.push_back(std::move(whole));
  }
}

RangeCosts::Work RangeCosts::Table::work(int first, int last) const {
  const auto i = static_cast<size_t>(first), j = static_cast<size_t>(last);
  const auto level = static_cast<size_t>(std::bit_width(j - i) - 1);
  const std::vector<double>& largest = workspace_[level];
  return {forward_[j] - forward_[i], backward_[j] - backward_[i], saved_[j] - saved_[i],
          std::max(largest[i], largest[j - (size_t{1} << level)])};
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
  struct Value {
    cost::Size size;
    bool grad;
    int producer, last_use;
  };
  std::vector<Value> values;
  std::vector<std::vector<size_t>> made(count);  // per block, its values
  for (int block = 0; block < blocks_; ++block) {
    for (const cost::ProfileOutput& output : blocks.nodes[static_cast<size_t>(block)].outputs) {
      made[static_cast<size_t>(block)].push_back(values.size());
      values.push_back({output.size, output.grad, block, block});
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
      Value& value = values[made[use.node][use.output]];
      if (value.last_use == block) continue;
      reads[static_cast<size_t>(block)].push_back({value.last_use, made[use.node][use.output]});
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
        const Value& value = values[use.what];
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
      for (const size_t index : made[static_cast<size_t>(first)]) {
        const Value& value = values[index];
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
