#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/segments.h"
#include "rannc/ir/shard.h"
#include "rannc/ops/objects.h"
#include "rannc/runtime/interpreter.h"
#include "runtime/stage/parameter_gathers.h"
#include "runtime/stage/second_run.h"
#include "runtime/stage/sync_batch_norm.h"

namespace rannc::runtime {

/// Where autograd's graph of a pass ends, one place per output. It keeps the graph alive, but not
/// the outputs, whose memory their gradients do not need.
struct GraphEnds;

/// What one forward pass of a stage keeps for its backward pass: autograd's graph, in which a
/// segment is one node that runs it again.
struct StagePass {
  std::vector<bool> requires_grad;  ///< [input]
  /// [input] what its backward has found; undefined where no gradient flows.
  std::shared_ptr<std::vector<at::Tensor>> input_grads;
  std::shared_ptr<GraphEnds> ends;
  std::shared_ptr<PassContext> context;
};

/// What of a stage is run again before its backward.
struct RunAgain {
  bool all = false;
  std::vector<std::vector<ir::NodeId>> segments = {};  ///< of the whole graph; see ir::segmented()
};

/// One stage as this rank runs it, on any micro-batch. `state` below is Interpreter::state_names().
class Stage {
 public:
  /// `outputs`: values of `whole` that leave the stage. `group`: who computes it together, cut
  /// along `factors`, those that cost least where there are none; null: this rank alone. `held`: of
  /// state, see ir::shard(), and so `sequence`. `sharing`: of its parameters among replicas.
  Stage(const ir::Graph& whole, const std::vector<ir::NodeId>& nodes,
        std::vector<ir::ValueId> outputs, const ops::Objects& objects, c10::Device device,
        const RunAgain& again = {}, std::shared_ptr<const Group> group = {},
        const std::vector<std::string>& factors = {}, const ir::Layouts& held = {},
        bool sequence = false, Sharing sharing = {});

  [[nodiscard]] const ir::Graph& graph() const { return graph_; }
  /// Values of the whole graph that the stage takes and gives, in the order used below.
  [[nodiscard]] const std::vector<ir::ValueId>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<ir::ValueId>& outputs() const { return outputs_; }
  /// What this rank has a part of.
  [[nodiscard]] const std::vector<ir::Part>& parts() const { return sharded_.parts; }
  /// What its replicas share; the state of a run has these whole, see ParameterGathers.
  [[nodiscard]] const SharedParameters& shared() const { return shared_; }
  [[nodiscard]] const Sharing& sharing() const { return sharing_; }
  /// -1 when the stage has no such input or output.
  [[nodiscard]] int find_input(ir::ValueId value) const;
  [[nodiscard]] int find_output(ir::ValueId value) const;
  [[nodiscard]] const std::vector<std::string>& state_names() const;
  /// Whether a node takes statistics of the whole batch (Node::whole_batch).
  [[nodiscard]] bool needs_whole_batch() const;
  /// Whether a part of it runs again in a backward.
  [[nodiscard]] bool runs_again() const { return !segmented_.segments.empty(); }
  /// What a node of the stage's graph is in the whole one.
  [[nodiscard]] ir::NodeId whole_node(uint32_t node) const { return whole_nodes_[node]; }

  /// Without anything kept. Outputs are detached. `key`, `batch` and `per_call` as in
  /// Interpreter::run().
  [[nodiscard]] std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs,
                                                const std::vector<at::Tensor>& state, int64_t rows,
                                                const DrawKey* key, PerCall* per_call,
                                                const std::shared_ptr<WholeBatch>& batch,
                                                ParameterGathers* gathers);
  /// Keeps in `pass` what backward() needs. `requires_grad[i]`: input i takes a gradient.
  [[nodiscard]] std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs,
                                                const std::vector<bool>& requires_grad,
                                                const std::vector<at::Tensor>& state, int64_t rows,
                                                StagePass& pass, std::shared_ptr<const DrawKey> key,
                                                PerCall* per_call,
                                                std::shared_ptr<WholeBatch> batch,
                                                ParameterGathers* gathers);

  /// Adds to `.grad` of the parameters in `state`, and returns the gradients of the inputs
  /// (undefined where none flows). `grads` are those of the outputs, undefined where none. With
  /// `keep_graph` it may be called again, on another copy of `pass`. `per_call` is for what runs
  /// again.
  [[nodiscard]] std::vector<at::Tensor> backward(StagePass pass, std::vector<at::Tensor> grads,
                                                 const std::vector<at::Tensor>& state,
                                                 PerCall* per_call, ParameterGathers* gathers,
                                                 bool keep_graph);

  /// What a replica without rows in a micro-batch still does: row-independent buffer writes.
  /// `inputs` are read where they are arguments of the call without rows.
  void skip(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& state,
            const DrawKey* key, ParameterGathers* gathers);
  /// [input] whether skip() reads it.
  [[nodiscard]] const std::vector<bool>& without_rows() const { return without_rows_; }

 private:
  ir::ShardedGraph sharded_;
  ir::SegmentedGraph segmented_;
  const ir::Graph& graph_ = segmented_.graph;
  std::vector<ir::ValueId> inputs_;
  std::vector<ir::ValueId> outputs_;
  std::vector<ir::NodeId> whole_nodes_;  ///< [node]
  bool only_aten_ = false;               ///< no operator is of another library or of the user
  std::vector<bool> without_rows_;
  std::unique_ptr<Interpreter> interpreter_;
  Sharing sharing_;
  SharedParameters shared_;
  c10::Device device_;
};

}  // namespace rannc::runtime
