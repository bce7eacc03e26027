#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/shard.h"
#include "rannc/ops/objects.h"
#include "rannc/runtime/interpreter.h"
#include "runtime/stage/random_state.h"
#include "runtime/stage/sync_batch_norm.h"

namespace rannc::runtime {

/// Where autograd's graph of a pass ends, one place per output. It keeps the graph alive, but not
/// the outputs, whose memory their gradients do not need.
struct GraphEnds;

/// What one forward pass of a stage keeps for its backward pass: autograd's graph, or, with
/// recompute, what it takes to run it again.
struct StagePass {
  int64_t rows = 0;
  std::vector<bool> requires_grad;  ///< [input]
  std::vector<at::Tensor> inputs;   ///< with recompute
  /// [input] what its backward has found; undefined where no gradient flows.
  std::shared_ptr<std::vector<at::Tensor>> input_grads;
  std::shared_ptr<GraphEnds> ends;
  bool recompute = false;
  std::vector<std::pair<size_t, at::Tensor>> kept;  ///< of the state, as it was before
  std::vector<uint32_t> versions;  ///< of the inputs, then of the state, with recompute
  RandomState random;
  std::shared_ptr<const DrawKey> key;
  std::shared_ptr<WholeBatch> batch;
};

/// A copy of a parameter or buffer whose gradient, if it takes one, is that of the original.
[[nodiscard]] at::Tensor copy_of_state(const at::Tensor& tensor);

/// One stage as this rank runs it, on any micro-batch. `state` below is Interpreter::state_names().
class Stage {
 public:
  /// `outputs`: values of `whole` that leave the stage. `group`: who computes it together, cut
  /// along `factors`, those that cost least where there are none; null: this rank alone. `held`: of
  /// state, see ir::shard(), and so `sequence`.
  Stage(const ir::Graph& whole, const std::vector<ir::NodeId>& nodes,
        std::vector<ir::ValueId> outputs, const ops::Objects& objects, c10::Device device,
        std::shared_ptr<const Group> group = {}, const std::vector<std::string>& factors = {},
        const ir::Layouts& held = {}, bool sequence = false);

  [[nodiscard]] const ir::Graph& graph() const { return graph_; }
  /// Values of the whole graph that the stage takes and gives, in the order used below.
  [[nodiscard]] const std::vector<ir::ValueId>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<ir::ValueId>& outputs() const { return outputs_; }
  /// What this rank has a part of.
  [[nodiscard]] const std::vector<ir::Part>& parts() const { return sharded_.parts; }
  /// -1 when the stage has no such input or output.
  [[nodiscard]] int find_input(ir::ValueId value) const;
  [[nodiscard]] int find_output(ir::ValueId value) const;
  [[nodiscard]] const std::vector<std::string>& state_names() const;
  /// Whether a node takes statistics of the whole batch (Node::whole_batch).
  [[nodiscard]] bool needs_whole_batch() const;
  /// What a node of the stage's graph is in the whole one.
  [[nodiscard]] ir::NodeId whole_node(uint32_t node) const { return whole_nodes_[node]; }

  /// Without anything kept. Outputs are detached. `key`, `batch` and `per_call` as in
  /// Interpreter::run().
  [[nodiscard]] std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs,
                                                const std::vector<at::Tensor>& state, int64_t rows,
                                                const DrawKey* key, PerCall* per_call,
                                                const std::shared_ptr<WholeBatch>& batch);
  /// Keeps in `pass` what backward() needs. `requires_grad[i]`: input i takes a gradient.
  [[nodiscard]] std::vector<at::Tensor> forward(
      std::vector<at::Tensor> inputs, const std::vector<bool>& requires_grad,
      const std::vector<at::Tensor>& state, int64_t rows, bool recompute, StagePass& pass,
      std::shared_ptr<const DrawKey> key, PerCall* per_call, std::shared_ptr<WholeBatch> batch);

  /// Adds to `.grad` of the parameters in `state`, and returns the gradients of the inputs
  /// (undefined where none flows). `grads` are those of the outputs, undefined where none. With
  /// `keep_graph` it may be called again, on another copy of `pass`. `per_call` is for recompute.
  [[nodiscard]] std::vector<at::Tensor> backward(StagePass pass, std::vector<at::Tensor> grads,
                                                 const std::vector<at::Tensor>& state,
                                                 PerCall* per_call, bool keep_graph);

  /// What a replica without rows in a micro-batch still does: row-independent buffer writes.
  /// `inputs` are read where they are arguments of the call without rows.
  void skip(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& state,
            const DrawKey* key = nullptr);
  /// [input] whether skip() reads it.
  [[nodiscard]] const std::vector<bool>& without_rows() const { return without_rows_; }

 private:
  /// Whether a pass with recompute keeps a copy of this tensor of the state.
  [[nodiscard]] bool is_kept(size_t index, const at::Tensor& tensor) const;
  void check_versions(const StagePass& pass, const std::vector<at::Tensor>& state) const;
  [[nodiscard]] std::vector<at::Tensor> record(std::vector<at::Tensor> inputs,
                                               const std::vector<at::Tensor>& state,
                                               StagePass& pass, PerCall* per_call);

  ir::ShardedGraph sharded_;
  const ir::Graph& graph_ = sharded_.graph;
  std::vector<ir::ValueId> inputs_;
  std::vector<ir::ValueId> outputs_;
  std::vector<ir::NodeId> whole_nodes_;  ///< [node]
  std::vector<size_t> written_state_;    ///< indices of the state
  bool only_aten_ = false;               ///< no operator is of another library or of the user
  std::vector<bool> without_rows_;
  std::unique_ptr<Interpreter> interpreter_;
  c10::Device device_;
};

}  // namespace rannc::runtime
