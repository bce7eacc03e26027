#include "rannc/runtime/interpreter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_set>

#include "rannc/ir/draws.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/shard.h"
#include "rannc/ops/cast.h"
#include "rannc/ops/operator.h"
#include "rannc/util/error.h"
#include "runtime/group/group.h"
#include "runtime/stage/keyed_draw.h"
#include "runtime/stage/parameter_gathers.h"
#include "runtime/stage/random_state.h"
#include "runtime/stage/sync_batch_norm.h"

namespace rannc::runtime {
namespace {

/// One node, ready to run. Registers are numbered as the graph's values.
struct Instruction {
  std::optional<ops::Operator> op;
  std::optional<GroupCollective> collective;  ///< where there is no `op`
  std::vector<uint32_t> operands;
  std::vector<bool> last_use;                    ///< per operand: nobody reads the register later
  std::vector<std::optional<uint32_t>> results;  ///< empty: nobody reads it at all
  bool grad_enabled = true;
  std::optional<KeyedDraw> draw;                ///< takes the place of `op` where there is a key
  std::optional<ir::Node> unkeyed;              ///< may draw, but has no rule
  std::optional<SyncBatchNorm> of_whole_batch;  ///< takes the place of `op` where there is one
  bool per_call = false;                        ///< see PerCall
  bool is_cast = false;                         ///< of those, one whose result may take a gradient
  bool only_use = false;                        ///< of a cast: nothing else reads its operand
};

/// Turns autocast off for every device: the casts of the model are nodes of the graph.
c10::impl::ExcludeDispatchKeyGuard no_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

bool is_state(const ir::Value& value) {
  return value.kind == ir::ValueKind::parameter || value.kind == ir::ValueKind::buffer;
}

bool literal_depends_on_rows(const ir::Argument& argument) {
  if (const auto* integer = std::get_if<ir::AffineInt>(&argument))
    return integer->depends_on_rows();
  const auto* integers = std::get_if<std::vector<ir::AffineInt>>(&argument);
  return integers != nullptr && std::ranges::any_of(*integers, &ir::AffineInt::depends_on_rows);
}

/// Nodes that write state although neither the rows nor an input that is not `known` reach them,
/// and the nodes that these need; in graph order.
std::vector<uint32_t> find_row_free_effects(const ir::Graph& graph,
                                            const std::vector<bool>& known) {
  std::vector<bool> tainted(graph.values.size());  // by value: such an input or the rows reach it
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (known.empty() || !known[i]) tainted[graph.inputs[i].index] = true;
  }
  std::vector<bool> row_free(graph.nodes.size());
  for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    const auto reached = [&](ir::ValueId value) {
      return tainted[value.index] || tainted[graph[value].storage.index];
    };
    row_free[i] = std::ranges::none_of(graph.operands({i}), reached) &&
                  std::ranges::none_of(node.inputs, literal_depends_on_rows);
    if (row_free[i]) continue;
    for (ir::ValueId output : node.outputs) {
      if (output.valid()) tainted[output.index] = true;
    }
    for (ir::ValueId written : node.writes) tainted[graph[written].storage.index] = true;
  }

  // A write counts for all views of its storage, so what is needed are values and storages. One
  // backward sweep finds every producer and every earlier write.
  std::unordered_set<ir::ValueId> values;
  std::unordered_set<ir::ValueId> storages;
  std::vector<uint32_t> found;
  for (uint32_t i = static_cast<uint32_t>(graph.nodes.size()); i-- > 0;) {
    const ir::Node& node = graph.nodes[i];
    if (!row_free[i]) continue;
    const bool needed =
        std::ranges::any_of(node.writes,
                            [&](ir::ValueId written) {
                              const ir::ValueId storage = graph[written].storage;
                              return is_state(graph[storage]) || storages.contains(storage);
                            }) ||
        std::ranges::any_of(node.outputs, [&](ir::ValueId id) { return values.contains(id); });
    if (!needed) continue;
    found.push_back(i);
    for (ir::ValueId operand : graph.operands({i})) {
      values.insert(operand);
      storages.insert(graph[operand].storage);
    }
  }
  std::ranges::reverse(found);
  return found;
}

}  // namespace

struct Interpreter::Impl {
  Impl(const ir::Graph& graph, const ops::Objects& objects, c10::Device device,
       const std::vector<bool>& known, const std::shared_ptr<const Group>& group,
       std::vector<ir::Segment> segments);

  /// What the instructions of a run get beside their operands.
  struct Context {
    int64_t rows;
    const DrawKey* key;
    const std::shared_ptr<WholeBatch>& batch;
    PerCall* per_call;
    bool caller_grad;
    ParameterGathers* gathers;
  };
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& state,
                              const Context& context, SegmentRecorder* recorder);
  std::vector<at::Tensor> run_segment(const ir::Segment& segment, std::vector<at::Tensor> inputs,
                                      const std::vector<at::Tensor>& state, const Context& context);
  void run_range(size_t begin, size_t end, const Context& context);
  void run_recorded(size_t segment, const std::vector<at::Tensor>& state, const Context& context,
                    SegmentRecorder& recorder);
  [[nodiscard]] std::vector<at::Tensor> outputs_of(const ir::Segment& segment) const;
  void run_row_free_effects(const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& state, const DrawKey* key,
                            ParameterGathers* gathers);

  void load_state(const std::vector<at::Tensor>& state);
  void find_per_call(const ir::Graph& graph);
  void make_per_call(Instruction& instruction, PerCall& per_call, bool caller_grad);
  void take_per_call(const Instruction& instruction, PerCall& per_call);
  void execute(Instruction& instruction, bool may_free, const DrawKey* key,
               const std::shared_ptr<WholeBatch>& batch = nullptr,
               ParameterGathers* gathers = nullptr);

  c10::Device device;
  std::vector<Instruction> instructions;
  std::vector<uint32_t> row_free_effects;  ///< indices into `instructions`
  std::vector<bool> shared;                ///< [value] in PerCall::results
  std::vector<uint32_t> input_registers;
  std::vector<bool> known_inputs;
  std::vector<bool> clone_input;  ///< a node writes it, and the caller's tensor must not change
  std::vector<uint32_t> state_registers;
  std::vector<std::string> state_names;
  struct Constant {
    uint32_t constant_register;
    at::Tensor tensor;
    bool clone;
  };
  std::vector<Constant> constants;
  std::vector<uint32_t> output_registers;
  std::vector<ir::Segment> segments;

  std::vector<at::Tensor> registers;
  std::vector<at::Tensor> operands, results;  // of the instruction at hand, kept for capacity
};

Interpreter::Impl::Impl(const ir::Graph& graph, const ops::Objects& objects, c10::Device on_device,
                        const std::vector<bool>& known, const std::shared_ptr<const Group>& group,
                        std::vector<ir::Segment> of_graph)
    : device(on_device), known_inputs(known), segments(std::move(of_graph)) {
  RANNC_CHECK(known.empty() || known.size() == graph.inputs.size(), c10::str(known.size()));
  std::vector<bool> written(graph.values.size());
  for (const ir::Node& node : graph.nodes) {
    for (ir::ValueId value : node.writes) written[graph[value].storage.index] = true;
  }
  const auto is_written = [&](ir::ValueId id) { return written[graph[id].storage.index]; };

  // The caller may write what a call returns, and the next call needs the constant as it was.
  const auto is_returned = [&](ir::ValueId id) {
    return std::ranges::any_of(graph.outputs, [&](ir::ValueId output) {
      return graph[output].storage == graph[id].storage;
    });
  };

  for (ir::ValueId input : graph.inputs) {
    input_registers.push_back(input.index);
    clone_input.push_back(is_written(input));
  }
  for (uint32_t i = 0; i < graph.values.size(); ++i) {
    const ir::Value& value = graph.values[i];
    if (is_state(value)) {
      state_registers.push_back(i);
      state_names.push_back(value.name);
    } else if (value.kind == ir::ValueKind::constant) {
      RANNC_CHECK(value.object.valid() && value.object.index < objects.size() &&
                      objects[value.object.index].isTensor(),
                  c10::str("constant '", value.name, "' refers to object ", value.object.index,
                           " of ", objects.size(), ", which is no tensor"));
      const c10::Device where = value.on_host ? c10::Device(c10::kCPU) : device;
      constants.push_back({i, objects[value.object.index].toTensor().to(where),
                           is_written({i}) || is_returned({i})});
    }
  }
  for (ir::ValueId output : graph.outputs) output_registers.push_back(output.index);

  std::vector<bool> read_later(graph.values.size());
  for (uint32_t output : output_registers) read_later[output] = true;
  instructions.reserve(graph.nodes.size());
  for (uint32_t i = static_cast<uint32_t>(graph.nodes.size()); i-- > 0;) {
    const ir::Node& node = graph.nodes[i];
    Instruction instruction;
    instruction.grad_enabled = node.grad_enabled;
    if (ir::is_collective(node)) {
      instruction.collective.emplace(graph, ir::NodeId{i}, group);
    } else {
      instruction.op.emplace(graph, ir::NodeId{i}, objects, device);
    }
    if (node.whole_batch) instruction.of_whole_batch.emplace(graph, ir::NodeId{i});
    if (const auto draw = ir::keyed_draw(node)) {
      instruction.draw.emplace(graph, ir::NodeId{i}, *draw, device);
    } else if (ir::draws(node)) {
      instruction.unkeyed = node;
    }
    for (ir::ValueId result : node.outputs) {
      const bool used = result.valid() && read_later[result.index];
      instruction.results.push_back(used ? std::optional(result.index) : std::nullopt);
    }
    for (ir::ValueId operand : graph.operands({i})) instruction.operands.push_back(operand.index);
    // Where an operand is given twice, its last place takes it from its register.
    instruction.last_use.resize(instruction.operands.size());
    for (size_t k = instruction.operands.size(); k-- > 0;) {
      instruction.last_use[k] = !read_later[instruction.operands[k]];
      read_later[instruction.operands[k]] = true;
    }
    instructions.push_back(std::move(instruction));
  }
  std::ranges::reverse(instructions);
  row_free_effects = find_row_free_effects(graph, known);
  shared.resize(graph.values.size());
  if (known.size() == graph.inputs.size()) find_per_call(graph);
  registers.resize(graph.values.size());
}

void Interpreter::Impl::find_per_call(const ir::Graph& graph) {
  const std::vector<bool> per_call = ir::per_call(graph, known_inputs);
  const std::vector<std::vector<ir::NodeId>> users = graph.users();
  for (uint32_t i = 0; i < instructions.size(); ++i) {
    if (!per_call[i]) continue;
    Instruction& instruction = instructions[i];
    instruction.per_call = true;
    instruction.is_cast = ir::is_float_cast(graph, ir::NodeId{i});
    instruction.only_use = instruction.is_cast && users[instruction.operands[0]].size() == 1;
    for (const std::optional<uint32_t>& result : instruction.results) {
      if (!result) continue;
      shared[*result] = std::ranges::any_of(users[*result],
                                            [&](ir::NodeId user) { return !per_call[user.index]; });
    }
  }
}

void Interpreter::Impl::load_state(const std::vector<at::Tensor>& state) {
  RANNC_CHECK(
      state.size() == state_registers.size(),
      c10::str("got ", state.size(), " parameters and buffers for ", state_registers.size()));
  for (size_t i = 0; i < state.size(); ++i) registers[state_registers[i]] = state[i];
  for (const Constant& constant : constants) {
    registers[constant.constant_register] =
        constant.clone ? constant.tensor.clone() : constant.tensor;
  }
}

namespace {

/// Calls what may draw without a key, and refuses it if it has drawn.
void call_without_drawing(Instruction& instruction, std::vector<at::Tensor>& operands,
                          std::vector<at::Tensor>& results, c10::Device device) {
  const RandomState before = RandomState::now(device);
  instruction.op->call(operands, results);
  if (before.equals(RandomState::now(device))) return;
  const ir::Node& node = *instruction.unkeyed;
  throw Error(c10::str("deterministic_dropout: ", node.op.empty() ? "a function" : node.op,
                       " (node '", node.name, "', module '", node.module, "', ",
                       ir::place(node.source), ") has drawn random numbers that cannot be told ",
                       "sample by sample.\n  Draw by dropout, bernoulli, rand or randn outside of ",
                       "it instead, or leave deterministic_dropout off."));
}

}  // namespace

void Interpreter::Impl::execute(Instruction& instruction, bool may_free, const DrawKey* key,
                                const std::shared_ptr<WholeBatch>& batch,
                                ParameterGathers* gathers) {
  const auto node = static_cast<size_t>(&instruction - instructions.data());
  if (gathers != nullptr) gathers->need(node);
  operands.clear();
  for (size_t k = 0; k < instruction.operands.size(); ++k) {
    at::Tensor& operand = registers[instruction.operands[k]];
    if (may_free && instruction.last_use[k]) {
      operands.push_back(std::move(operand));
    } else {
      operands.push_back(operand);
    }
  }
  if (instruction.collective) {
    instruction.collective->call(operands, results);
  } else if (batch && instruction.of_whole_batch) {
    instruction.of_whole_batch->call(operands, results, batch);
  } else if (key != nullptr && instruction.draw) {
    instruction.draw->call(operands, results, *key);
  } else if (key != nullptr && instruction.unkeyed) {
    call_without_drawing(instruction, operands, results, device);
  } else {
    instruction.op->call(operands, results);
  }
  if (gathers != nullptr) gathers->follow(node, results);
  for (size_t k = 0; k < instruction.results.size(); ++k) {
    if (instruction.results[k]) registers[*instruction.results[k]] = std::move(results[k]);
  }
  results.clear();
}

/// Runs an instruction for all micro-batches of the call.
void Interpreter::Impl::make_per_call(Instruction& instruction, PerCall& per_call,
                                      bool caller_grad) {
  const bool takes_gradient =
      instruction.is_cast && instruction.grad_enabled && (caller_grad || per_call.gradients);
  const at::Tensor source = takes_gradient ? registers[instruction.operands[0]] : at::Tensor();
  {
    const at::NoGradGuard no_grad;
    execute(instruction, /*may_free=*/true, nullptr);
  }
  for (const std::optional<uint32_t>& result : instruction.results) {
    if (!result) continue;
    if (takes_gradient) {
      ops::record_shared_cast(source, registers[*result], instruction.only_use);
    }
    if (shared[*result] && !per_call.last) per_call.results[*result] = registers[*result];
  }
}

void Interpreter::Impl::take_per_call(const Instruction& instruction, PerCall& per_call) {
  for (const std::optional<uint32_t>& result : instruction.results) {
    if (!result || !shared[*result]) continue;
    at::Tensor& made = per_call.results[*result];
    registers[*result] = per_call.last ? std::move(made) : made;
  }
}

namespace {

/// Empties the registers however a run ends, so that no tensor outlives it.
class RegisterCleaner {
 public:
  RegisterCleaner(std::vector<at::Tensor>& registers, std::vector<at::Tensor>& operands)
      : registers_(registers), operands_(operands) {}
  ~RegisterCleaner() {
    operands_.clear();
    for (at::Tensor& tensor : registers_) tensor.reset();
  }
  RegisterCleaner(const RegisterCleaner&) = delete;
  RegisterCleaner& operator=(const RegisterCleaner&) = delete;

 private:
  std::vector<at::Tensor>& registers_;
  std::vector<at::Tensor>& operands_;
};

}  // namespace

std::vector<at::Tensor> Interpreter::Impl::run(std::vector<at::Tensor> inputs,
                                               const std::vector<at::Tensor>& state,
                                               const Context& context, SegmentRecorder* recorder) {
  RANNC_CHECK(inputs.size() == input_registers.size(),
              c10::str("got ", inputs.size(), " inputs for ", input_registers.size()));
  const auto autocast_guard = no_autocast();
  const at::AutoGradMode restore_grad(context.caller_grad);
  const RegisterCleaner cleaner(registers, operands);

  load_state(state);
  for (size_t i = 0; i < inputs.size(); ++i) {
    registers[input_registers[i]] = clone_input[i] ? inputs[i].clone() : std::move(inputs[i]);
  }
  inputs.clear();
  size_t at = 0;
  for (size_t segment = 0; recorder != nullptr && segment < segments.size(); ++segment) {
    run_range(at, segments[segment].begin, context);
    run_recorded(segment, state, context, *recorder);
    at = segments[segment].end;
  }
  run_range(at, instructions.size(), context);
  std::vector<at::Tensor> outputs;
  outputs.reserve(output_registers.size());
  for (uint32_t output : output_registers) outputs.push_back(registers[output]);
  return outputs;
}

void Interpreter::Impl::run_range(size_t begin, size_t end, const Context& context) {
  PerCall* const per_call = context.per_call;
  if (per_call != nullptr) {
    per_call->made.resize(instructions.size());
    per_call->results.resize(registers.size());
  }
  bool grad = context.caller_grad;
  const at::AutoGradMode restore_grad(grad);
  for (size_t index = begin; index < end; ++index) {
    Instruction& instruction = instructions[index];
    if (per_call != nullptr && instruction.per_call) {
      if (per_call->made[index]) {
        take_per_call(instruction, *per_call);
      } else {
        make_per_call(instruction, *per_call, context.caller_grad);
        per_call->made[index] = true;
      }
      continue;
    }
    const bool wanted = context.caller_grad && instruction.grad_enabled;
    if (wanted != grad) {
      at::GradMode::set_enabled(wanted);
      grad = wanted;
    }
    if (instruction.op) instruction.op->set_rows(context.rows);
    execute(instruction, /*may_free=*/true, context.key, context.batch, context.gathers);
  }
}

std::vector<at::Tensor> Interpreter::Impl::outputs_of(const ir::Segment& segment) const {
  std::vector<at::Tensor> outputs;
  for (ir::ValueId output : segment.outputs) outputs.push_back(registers[output.index]);
  return outputs;
}

void Interpreter::Impl::run_recorded(size_t number, const std::vector<at::Tensor>& state,
                                     const Context& context, SegmentRecorder& recorder) {
  const ir::Segment& segment = segments[number];
  std::vector<at::Tensor> inputs;
  for (const auto& [value, is_written] : segment.inputs) {
    inputs.push_back(is_written ? registers[value.index].clone() : registers[value.index]);
  }
  recorder.enter(number, std::move(inputs), state);
  Context unrecorded = context;
  unrecorded.caller_grad = false;
  run_range(segment.begin, segment.end, unrecorded);
  std::vector<at::Tensor> outputs = outputs_of(segment);
  recorder.leave(number, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    registers[segment.outputs[i].index] = std::move(outputs[i]);
  }
}

std::vector<at::Tensor> Interpreter::Impl::run_segment(const ir::Segment& segment,
                                                       std::vector<at::Tensor> inputs,
                                                       const std::vector<at::Tensor>& state,
                                                       const Context& context) {
  const auto autocast_guard = no_autocast();
  const RegisterCleaner cleaner(registers, operands);
  load_state(state);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [value, is_written] = segment.inputs[i];
    registers[value.index] = is_written ? inputs[i].clone() : std::move(inputs[i]);
  }
  inputs.clear();
  run_range(segment.begin, segment.end, context);
  return outputs_of(segment);
}

void Interpreter::Impl::run_row_free_effects(const std::vector<at::Tensor>& inputs,
                                             const std::vector<at::Tensor>& state,
                                             const DrawKey* key, ParameterGathers* gathers) {
  const auto autocast_guard = no_autocast();
  const at::NoGradGuard no_grad;
  const RegisterCleaner cleaner(registers, operands);
  load_state(state);
  for (size_t i = 0; i < known_inputs.size(); ++i) {
    if (!known_inputs[i]) continue;
    registers[input_registers[i]] = clone_input[i] ? inputs.at(i).clone() : inputs.at(i);
  }
  for (uint32_t index : row_free_effects) {
    execute(instructions[index], /*may_free=*/false, key, nullptr, gathers);
  }
}

Interpreter::Interpreter(const ir::Graph& graph, const ops::Objects& objects, c10::Device device,
                         const std::vector<bool>& known, std::shared_ptr<const Group> group,
                         std::vector<ir::Segment> segments)
    : impl_(std::make_unique<Impl>(graph, objects, device, known, group, std::move(segments))) {}

Interpreter::~Interpreter() = default;
Interpreter::Interpreter(Interpreter&&) noexcept = default;

void Interpreter::share(const SharedParameters& shared) {
  for (size_t index = 0; index < impl_->instructions.size(); ++index) {
    if (shared.reached_by_one[index]) impl_->instructions[index].per_call = false;
  }
}

const std::vector<std::string>& Interpreter::state_names() const { return impl_->state_names; }

std::vector<at::Tensor> Interpreter::run(std::vector<at::Tensor> inputs,
                                         const std::vector<at::Tensor>& state, int64_t rows,
                                         const DrawKey* key,
                                         const std::shared_ptr<WholeBatch>& batch,
                                         PerCall* per_call, SegmentRecorder* recorder,
                                         ParameterGathers* gathers) {
  return impl_->run(std::move(inputs), state,
                    {rows, key, batch, per_call, at::GradMode::is_enabled(), gathers}, recorder);
}

std::vector<at::Tensor> Interpreter::run_segment(size_t segment, std::vector<at::Tensor> inputs,
                                                 const std::vector<at::Tensor>& state, int64_t rows,
                                                 const DrawKey* key,
                                                 const std::shared_ptr<WholeBatch>& batch,
                                                 PerCall* per_call, ParameterGathers* gathers) {
  return impl_->run_segment(impl_->segments.at(segment), std::move(inputs), state,
                            {rows, key, batch, per_call, /*caller_grad=*/true, gathers});
}

void Interpreter::run_row_free_effects(const std::vector<at::Tensor>& inputs,
                                       const std::vector<at::Tensor>& state, const DrawKey* key,
                                       ParameterGathers* gathers) {
  impl_->run_row_free_effects(inputs, state, key, gathers);
}

}  // namespace rannc::runtime
