#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "partition/blocks/block_costs.h"
#include "partition/blocks/moments.h"
#include "partition/problem/state_bytes.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

/// A model of blocks, arranged for weighing many drafts: who reads what, which parameters are
/// shared. Made from a contracted profile (contract.h); copies what it needs of it. `costs` must
/// live, and be of the same blocks.
class BlockModel {
 public:
  using State = StateBytes;
  struct Value {
    cost::Size size;
    bool grad = true;
    uint32_t producer = 0;
    std::vector<uint32_t> users;  ///< other blocks, ascending, at least one
  };
  struct SharedParam {
    State state;
    std::vector<uint32_t> users;  ///< at least two, ascending
  };
  struct SharedInput {
    cost::Size size;
    std::vector<uint32_t> users;  ///< at least two, ascending
  };

  BlockModel(const cost::GraphProfile& blocks, const Request& request, const BlockCosts& costs);

  [[nodiscard]] size_t blocks() const { return own_.size(); }
  [[nodiscard]] const BlockCosts& costs() const { return costs_; }
  /// Null: the graph's file is of version 1, and memory is by section 6.
  [[nodiscard]] const Moments* moments() const { return moments_.get(); }
  /// The bytes of parameters and graph inputs that only this block uses.
  [[nodiscard]] const State& own_state(size_t block) const { return own_[block]; }
  [[nodiscard]] const cost::Size& own_input(size_t block) const { return inputs_[block]; }
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }
  [[nodiscard]] const std::vector<SharedParam>& shared_params() const { return shared_params_; }
  [[nodiscard]] const std::vector<SharedInput>& shared_inputs() const { return shared_inputs_; }
  /// Blocks whose values a block reads, and blocks that read its values; ascending, each once.
  [[nodiscard]] const std::vector<uint32_t>& before(size_t block) const { return before_[block]; }
  [[nodiscard]] const std::vector<uint32_t>& after(size_t block) const { return after_[block]; }

 private:
  const BlockCosts& costs_;
  std::unique_ptr<Moments> moments_;
  std::vector<State> own_;
  std::vector<cost::Size> inputs_;
  std::vector<Value> values_;
  std::vector<SharedParam> shared_params_;
  std::vector<SharedInput> shared_inputs_;
  std::vector<std::vector<uint32_t>> before_, after_;
};

}  // namespace rannc::partition
