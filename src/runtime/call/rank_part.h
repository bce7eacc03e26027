#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"
#include "rannc/plan/plan.h"
#include "rannc/runtime/executor.h"
#include "runtime/call/whole_batch_prelude.h"
#include "runtime/stage/running_statistics.h"
#include "runtime/stage/stage.h"

namespace rannc::runtime {

/// Where a tensor of a stage's state comes from.
struct StateSource {
  bool buffer = false;  ///< else a parameter
  size_t index = 0;     ///< into parameter_names or buffer_names
};

/// A stage of the plan on this rank.
struct LocalStage {
  std::unique_ptr<Stage> stage;
  int replica = 0;         ///< place of this rank among the stage's ranks
  bool recompute = false;  ///< the whole stage
  std::vector<StateSource> state;
  std::vector<bool> input_requires_grad;  ///< [stage input]
  RunningStatistics statistics;
  std::vector<size_t> row_free;  ///< into `state`: what a call writes once
};

/// Index of `value`, which must be among `values`.
[[nodiscard]] size_t place_of(const std::vector<ir::ValueId>& values, ir::ValueId value);

/// One rank's part of a plan: all that stays the same over the calls, whatever their batches.
struct RankPart {
  /// `outputs`: what the calls return, as plan::returned_outputs() says. `whole`: a part that
  /// returns more, and so may hold more parameters; both then name their state alike.
  RankPart(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
           std::vector<ir::ValueId> outputs, std::shared_ptr<comm::Communicator> comm,
           c10::Device device, const Options& options, const RankPart* whole = nullptr);

  /// The stage, which must be on this rank.
  [[nodiscard]] const LocalStage& local(int stage) const;
  /// [stage] for a call with these parameters; null where a stage's replicas share none.
  [[nodiscard]] std::vector<std::shared_ptr<ParameterGathers>> gathers_of(
      const std::vector<at::Tensor>& parameters) const;
  /// Where a value is.
  [[nodiscard]] c10::Device device_of(const ir::Value& value) const {
    return value.on_host ? c10::Device(c10::kCPU) : device;
  }
  /// Place of a name in buffer_names.
  [[nodiscard]] size_t buffer_place(const std::string& name) const;

  ir::Graph graph;
  std::shared_ptr<comm::Communicator> comm;
  c10::Device device;
  std::shared_ptr<comm::Stream> stream;
  int rank = 0;
  Prelude prelude;
  bool outside_sum = false;
  bool show_values = false;
  bool float32_sums = false;
  std::shared_ptr<const DrawSteps> draw_steps;  ///< null: from the generators
  bool from_generators = false;                 ///< some rank draws from its generator, or may
  std::vector<LocalStage> stages;           ///< [stage]; `stage` is null where this rank runs none
  std::vector<ir::ValueId> output_values;   ///< that calls return, ascending
  std::vector<ir::ValueId> scalar_outputs;  ///< those of kind mean or sum
  std::vector<ir::Part> parts;              ///< of parameters and buffers
  std::unordered_map<std::string, std::vector<int64_t>> part_sizes;  ///< by name, of `parts`
  std::vector<std::string> parameter_names;
  std::vector<size_t>
      parameter_places;  ///< [value of the graph]: where its name is there, if it is
  std::vector<std::string> buffer_names;
  std::vector<std::vector<int64_t>> parameter_sizes;
  std::vector<std::vector<int64_t>> buffer_sizes;

 private:
  [[nodiscard]] Sharing sharing_of(const plan::Stage& stage, int64_t bucket_bytes) const;
  void add_shared(const plan::Stage& stage);
  void add_stages(const ops::Objects& objects, const plan::Plan& plan, const Options& options);
  void find_parts();
  void name_state(const RankPart* whole, const Options& options);
  void find_gradients(const plan::Plan& plan);
};

}  // namespace rannc::runtime
