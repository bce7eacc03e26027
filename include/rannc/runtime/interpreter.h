#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/ir/segments.h"
#include "rannc/ops/objects.h"
#include "rannc/runtime/draws.h"

namespace rannc::runtime {

class Group;
class ParameterGathers;
class WholeBatch;
struct SharedParameters;

/// Results that all micro-batches of a call share (ir::per_call()). The first run that gets it
/// makes them, and the others take them from it.
struct PerCall {
  bool gradients = false;  ///< they take gradients, also where the run that makes them takes none
  bool last = false;       ///< the run is the last one: each of them is freed at its last use
  std::vector<bool> made;  ///< [node]
  std::vector<at::Tensor> results;  ///< [value]
};

/// Is told where a run comes to segments. Autograd does not record their nodes.
class SegmentRecorder {
 public:
  virtual ~SegmentRecorder() = default;
  /// `inputs` as Segment::inputs, `state` as Interpreter::state_names().
  virtual void enter(size_t segment, std::vector<at::Tensor> inputs,
                     const std::vector<at::Tensor>& state) = 0;
  /// `outputs` as Segment::outputs; what it makes of them goes on.
  virtual void leave(size_t segment, std::vector<at::Tensor>& outputs) = 0;
};

/// Runs a graph (a whole model, or one stage of it) on real tensors at any number of rows.
///
/// Values live in integer registers and are freed at their last use. Grad mode is set per node as
/// recorded; autocast is off (casts are in the graph); autograd records every operator as in eager
/// mode. Not thread-safe: one per thread. The caller must not hold the GIL.
class Interpreter {
 public:
  /// `known`: of each input, whether run_row_free_effects() is given it, and all micro-batches of a
  /// call get the same; empty: none.
  /// `group`: who runs the graph's collectives; a graph without any needs none. `segments`: of the
  /// graph, see ir::segmented().
  Interpreter(const ir::Graph& graph, const ops::Objects& objects, c10::Device device,
              const std::vector<bool>& known = {}, std::shared_ptr<const Group> group = {},
              std::vector<ir::Segment> segments = {});
  /// What depends on parameters that replicas share is not kept for the call: they have no memory
  /// between the nodes that need them. To be called before a run.
  void share(const SharedParameters& shared);
  ~Interpreter();
  Interpreter(Interpreter&&) noexcept;

  /// Names of the parameters and buffers that run() takes, in its order (graph order).
  [[nodiscard]] const std::vector<std::string>& state_names() const;

  /// `inputs` as graph.inputs, `state` as state_names(). Buffers are updated in place where the
  /// model does so. Returns graph.outputs. With `key`, random numbers are told from it, and not
  /// drawn from torch's generator. With `batch`, nodes of the whole batch (Node::whole_batch) take
  /// its statistics; without, those of the rows at hand. `per_call`: what the micro-batches of the
  /// call share; null: nothing. `recorder`: null: nodes of segments run as all others. `gathers`:
  /// parameters that replicas share; null: none.
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor> inputs,
                                            const std::vector<at::Tensor>& state, int64_t rows,
                                            const DrawKey* key = nullptr,
                                            const std::shared_ptr<WholeBatch>& batch = nullptr,
                                            PerCall* per_call = nullptr,
                                            SegmentRecorder* recorder = nullptr,
                                            ParameterGathers* gathers = nullptr);

  /// Runs one segment, in which autograd records every operator. `inputs` as Segment::inputs.
  [[nodiscard]] std::vector<at::Tensor> run_segment(size_t segment, std::vector<at::Tensor> inputs,
                                                    const std::vector<at::Tensor>& state,
                                                    int64_t rows, const DrawKey* key,
                                                    const std::shared_ptr<WholeBatch>& batch,
                                                    PerCall* per_call, ParameterGathers* gathers);

  /// Runs only the nodes that do not depend on the rows and write a buffer (step counters): what a
  /// replica without rows in this micro-batch must still do. Of `inputs`, in the order of
  /// graph.inputs, those that were known when this was made are read; without any, it may be empty.
  void run_row_free_effects(const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& state, const DrawKey* key = nullptr,
                            ParameterGathers* gathers = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rannc::runtime
