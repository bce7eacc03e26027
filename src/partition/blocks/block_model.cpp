#include "partition/blocks/block_model.h"

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::partition {
namespace {

void add(cost::Size& sum, const cost::Size& size) {
  sum.bytes_per_row += size.bytes_per_row;
  sum.fixed_bytes += size.fixed_bytes;
}

void add_once(std::vector<uint32_t>& list, uint32_t block) {
  if (list.empty() || list.back() != block) list.push_back(block);
}

void sort_unique(std::vector<uint32_t>& list) {
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

BlockModel::BlockModel(const cost::GraphProfile& blocks, const Request& request,
                       const BlockCosts& costs)
    : costs_(costs),
      own_(blocks.nodes.size()),
      inputs_(blocks.nodes.size()),
      before_(blocks.nodes.size()),
      after_(blocks.nodes.size()) {
  RANNC_CHECK(costs.blocks() == blocks.nodes.size(), "the costs are of other blocks");
  if (costs.profile().version > 1) {
    moments_ = std::make_unique<Moments>(costs.profile(), costs.members(), request);
  }
  const auto count = static_cast<uint32_t>(blocks.nodes.size());
  std::vector<std::vector<uint32_t>> param_users(blocks.params.size()),
      input_users(blocks.inputs.size());
  std::vector<std::vector<std::vector<uint32_t>>> readers(count);  // per output
  for (uint32_t block = 0; block < count; ++block) {
    readers[block].resize(blocks.nodes[block].outputs.size());
  }
  for (uint32_t block = 0; block < count; ++block) {
    const cost::ProfileNode& node = blocks.nodes[block];
    for (const uint32_t param : node.params) add_once(param_users[param], block);
    for (const cost::ProfileUse& use : node.inputs) {
      if (use.is_input) {
        add_once(input_users[use.node], block);
        continue;
      }
      if (use.node == block) continue;
      add_once(readers[use.node][use.output], block);
      before_[block].push_back(use.node);
      after_[use.node].push_back(block);
    }
    sort_unique(before_[block]);
  }
  for (uint32_t block = 0; block < count; ++block) {
    sort_unique(after_[block]);
    for (size_t output = 0; output < readers[block].size(); ++output) {
      if (readers[block][output].empty()) continue;
      const cost::ProfileOutput& value = blocks.nodes[block].outputs[output];
      values_.push_back({value.size, value.grad, block, std::move(readers[block][output])});
    }
  }
  for (size_t param = 0; param < param_users.size(); ++param) {
    const State state = state_of(blocks.params[param], request);
    if (param_users[param].size() == 1) {
      own_[param_users[param].front()] += state;
    } else if (param_users[param].size() > 1) {
      shared_params_.push_back({state, std::move(param_users[param])});
    }
  }
  for (size_t input = 0; input < input_users.size(); ++input) {
    if (input_users[input].size() == 1) {
      add(inputs_[input_users[input].front()], blocks.inputs[input].size);
    } else if (input_users[input].size() > 1) {
      shared_inputs_.push_back({blocks.inputs[input].size, std::move(input_users[input])});
    }
  }
}

}  // namespace rannc::partition
