#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <utility>

#include "frontend/recording.h"
#include "frontend/source_line.h"
#include "rannc/frontend/tracer.h"
#include "rannc/util/error.h"

namespace rannc::frontend {
namespace jit = torch::jit;
namespace {

/// Sets the tracing state also inside kernels, where torch excludes the tracer's dispatch key and
/// asserts that nobody turns tracing on or off.
void set_tracing_state(std::shared_ptr<jit::tracer::TracingState> state) {
  constexpr auto kTracer = c10::DispatchKey::Tracer;
  const bool excluded = c10::impl::tls_is_dispatch_key_excluded(kTracer);
  if (excluded) c10::impl::tls_set_dispatch_key_excluded(kTracer, false);
  jit::tracer::setTracingState(std::move(state));
  if (excluded) c10::impl::tls_set_dispatch_key_excluded(kTracer, true);
}

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& found) {
  if (value.isTensor()) {
    found.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(tensor);
  }
}

}  // namespace

struct Tracer::Impl {
  std::string torch_path;
  std::string own_path;
  std::shared_ptr<jit::tracer::TracingState> state = std::make_shared<jit::tracer::TracingState>();
  Recording recording;
  std::vector<std::string> modules{""};
  /// The operators that run now, outermost first, and the node recorded for each, if any.
  std::vector<jit::Node*> running;
  /// The last call of a custom autograd function that torch itself has recorded.
  jit::Node* last_python = nullptr;
  std::vector<std::shared_ptr<jit::tracer::TracingState>> hidden;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  bool started = false;

  static thread_local Impl* current;

  NodeFacts facts_here() const {
    return {.module = modules.back(),
            .source = current_line(torch_path, own_path),
            .grad_enabled = at::GradMode::is_enabled(),
            .outputs = {},
            .written = {},
            .requires_grad = std::nullopt};
  }

  /// torch calls this for every node that it records, in the thread that records it.
  static void on_node(jit::Node* node) {
    if (current == nullptr) {
      // Somebody else's trace: the source line is all that torch's own hook would keep.
      const auto callstack = jit::tracer::pythonCallstack();
      if (!callstack.empty()) node->setSourceRange(callstack.front().range);
      return;
    }
    current->recording.facts.emplace(node, current->facts_here());
    if (node->kind() == jit::prim::PythonOp) current->last_python = node;
    const bool is_operator = !node->kind().is_prim();
    if (is_operator && !current->running.empty() && current->running.back() == nullptr) {
      current->running.back() = node;
    }
  }

  static std::unique_ptr<at::ObserverContext> on_enter(const at::RecordFunction&) {
    if (current != nullptr) current->running.push_back(nullptr);
    return nullptr;
  }

  static void on_leave(const at::RecordFunction& function, at::ObserverContext*) {
    if (current == nullptr || current->running.empty()) return;
    const jit::Node* node = current->running.back();
    current->running.pop_back();
    if (node == nullptr) return;
    for (const c10::IValue& output : function.outputs()) {
      append_tensors(output, current->recording.facts.at(node).outputs);
    }
  }

  jit::Value* value_of(const c10::IValue& argument) {
    if (argument.isTensor()) {
      if (!argument.toTensor().defined()) return state->graph->insertConstant(c10::IValue());
      return state->getValue(argument);
    }
    if (argument.isTensorList()) {
      std::vector<jit::Value*> values;
      for (const at::Tensor& tensor : argument.toTensorVector()) values.push_back(value_of(tensor));
      jit::Node* list = state->graph->createList(c10::TensorType::get(), values);
      return state->graph->insertNode(list)->output();
    }
    return state->graph->insertConstant(argument);
  }

  jit::Node* insert(c10::Symbol kind, const std::vector<c10::IValue>& arguments,
                    const std::vector<at::Tensor>& outputs) {
    std::vector<jit::Value*> values;
    for (const c10::IValue& argument : arguments) values.push_back(value_of(argument));
    jit::Node* node = state->graph->insertNode(state->graph->create(kind, values, outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) continue;
      node->outputs()[i]->inferTypeFrom(outputs[i]);
      state->setValue(outputs[i], node->outputs()[i]);
    }
    NodeFacts facts = facts_here();
    facts.outputs = outputs;
    recording.facts.insert_or_assign(node, std::move(facts));
    return node;
  }

  void stop() {
    if (!started) return;
    started = false;
    hidden.clear();
    set_tracing_state(nullptr);
    // Its weak references to parameters would keep ranks from freeing what others hold, for as long
    // as somebody has this object.
    state->leaveFrame();
    state->enterFrame();
    at::removeCallback(callback);
    current = nullptr;
  }
};

thread_local Tracer::Impl* Tracer::Impl::current = nullptr;

Tracer::Tracer(std::string torch_path, std::string own_path) : impl_(std::make_unique<Impl>()) {
  impl_->torch_path = std::move(torch_path);
  impl_->own_path = std::move(own_path);
  impl_->state->lookup_var_name_fn = [](const at::Tensor&) { return std::string(); };
  impl_->state->warn = false;
}

Tracer::~Tracer() { impl_->stop(); }

void Tracer::add_input(const std::string& name, const at::Tensor& tensor,
                       std::optional<int> batch_dim) {
  jit::Value* value = impl_->state->graph->addInput();
  value->inferTypeFrom(tensor);
  impl_->state->setValue(tensor, value);
  impl_->recording.starts.push_back({value, ir::ValueKind::input, {name}, batch_dim, tensor});
}

void Tracer::add_state(ir::ValueKind kind, std::vector<std::string> names, const at::Tensor& tensor,
                       const at::Tensor& original) {
  jit::Value* value = impl_->state->graph->addInput();
  value->inferTypeFrom(tensor);
  impl_->state->setValue(tensor, value);
  impl_->state->setValue(original, value);
  impl_->recording.starts.push_back({value, kind, std::move(names), std::nullopt, tensor});
}

void Tracer::name_constant(const at::Tensor& tensor, const std::string& name) {
  impl_->recording.constant_names.emplace(tensor.unsafeGetTensorImpl(), name);
}

void Tracer::start() {
  RANNC_CHECK(Impl::current == nullptr, "a trace is already running in this thread");
  Impl::current = impl_.get();
  jit::tracer::setRecordSourceLocation(&Impl::on_node);
  impl_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&Impl::on_enter, &Impl::on_leave)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  impl_->started = true;
  set_tracing_state(impl_->state);
}

void Tracer::stop() { impl_->stop(); }

void Tracer::enter_module(const std::string& path) { impl_->modules.push_back(path); }
void Tracer::leave_module() { impl_->modules.pop_back(); }
std::string Tracer::module() const { return impl_->modules.back(); }

void Tracer::hide() {
  impl_->hidden.push_back(jit::tracer::getTracingState());
  set_tracing_state(nullptr);
}

void Tracer::show() {
  RANNC_CHECK(!impl_->hidden.empty(), "show() without hide()");
  set_tracing_state(std::move(impl_->hidden.back()));
  impl_->hidden.pop_back();
}

bool Tracer::unrecorded() const {
  return jit::tracer::isTracing() &&
         std::ranges::all_of(impl_->running, [](const jit::Node* node) { return node == nullptr; });
}

void Tracer::record_operator(const std::string& name, const std::vector<c10::IValue>& arguments,
                             const std::vector<at::Tensor>& outputs, bool below_autograd) {
  const jit::Node* node = impl_->insert(c10::Symbol::fromQualString(name), arguments, outputs);
  if (!below_autograd) return;
  bool requires_grad = false;
  for (const jit::Value* input : node->inputs()) requires_grad |= input->requires_grad();
  NodeFacts& facts = impl_->recording.facts.at(node);
  facts.requires_grad = requires_grad && facts.grad_enabled;
}

void Tracer::record_object(ir::OpKind kind, const std::string& op, const c10::IValue& object,
                           const std::vector<c10::IValue>& arguments,
                           const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& written) {
  const char* symbol = kind == ir::OpKind::python ? kPythonNode : kScriptedNode;
  jit::Node* node = impl_->insert(c10::Symbol::fromQualString(symbol), arguments, outputs);
  node->i_(c10::Symbol::attr(kCallIndex), static_cast<int64_t>(impl_->recording.calls.size()));
  impl_->recording.calls.push_back({op, object});
  impl_->recording.facts.at(node).written = written;
}

void Tracer::describe_python(const std::string& op, const c10::IValue& object,
                             const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& written) {
  jit::Node* node = std::exchange(impl_->last_python, nullptr);
  RANNC_CHECK(node != nullptr, "torch's tracer has not recorded this call");
  node->i_(c10::Symbol::attr(kCallIndex), static_cast<int64_t>(impl_->recording.calls.size()));
  impl_->recording.calls.push_back({op, object});
  impl_->recording.facts.at(node).written = written;
  impl_->recording.facts.at(node).outputs = outputs;
  // torch asks for the results' values in a graph of what the function computes, which stays empty.
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    impl_->state->setValue(output, impl_->state->graph->insertConstant(c10::IValue()));
  }
}

void Tracer::record_constant(const at::Tensor& tensor, const at::Tensor& value) {
  jit::Value* constant = impl_->state->graph->insertConstant(value);
  impl_->recording.facts.insert_or_assign(constant->node(), impl_->facts_here());
  impl_->recording.stand_ins.insert_or_assign(constant, tensor);
  impl_->state->setValue(tensor, constant);
}

void Tracer::record_number(const at::Tensor& tensor, const c10::IValue& number) {
  impl_->recording.numbers.insert_or_assign(impl_->state->getValue(tensor), number);
}

Trace Tracer::finish(const std::string& name, int64_t rows,
                     const std::vector<at::Tensor>& outputs) {
  Recording& recording = impl_->recording;
  for (const at::Tensor& output : outputs) {
    recording.outputs.push_back(impl_->state->getValue(output));
  }
  impl_->stop();
  recording.graph = impl_->state->graph;
  return convert(recording, name, rows);
}

}  // namespace rannc::frontend
