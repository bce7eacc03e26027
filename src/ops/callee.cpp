#include "ops/callee.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/utils/pybind.h>

#include "ops/linear.h"
#include "ops/place.h"
#include "rannc/util/error.h"

namespace rannc::ops {
namespace {

class DispatcherCallee final : public Callee {
 public:
  explicit DispatcherCallee(c10::OperatorHandle handle) : handle_(std::move(handle)) {}
  const c10::FunctionSchema* schema() const override { return &handle_.schema(); }
  void call(torch::jit::Stack& stack) override { handle_.callBoxed(stack); }

 private:
  c10::OperatorHandle handle_;
};

class LinearCallee final : public Callee {
 public:
  explicit LinearCallee(const c10::OperatorHandle& handle) : general_(handle) {}
  const c10::FunctionSchema* schema() const override { return general_.schema(); }
  void call(torch::jit::Stack& stack) override {
    if (!call_linear(stack)) general_.call(stack);
  }

 private:
  DispatcherCallee general_;
};

class ScriptedCallee final : public Callee {
 public:
  explicit ScriptedCallee(torch::jit::StrongFunctionPtr function)
      : function_(std::move(function)) {}
  const c10::FunctionSchema* schema() const override { return &function_.function_->getSchema(); }
  void call(torch::jit::Stack& stack) override { function_.function_->run(stack); }

 private:
  torch::jit::StrongFunctionPtr function_;
};

class PythonCallee final : public Callee {
 public:
  explicit PythonCallee(c10::IValue callable) : callable_(std::move(callable)) {}
  const c10::FunctionSchema* schema() const override { return nullptr; }

  void call(torch::jit::Stack& stack) override {
    const py::gil_scoped_acquire gil;
    py::tuple arguments(stack.size());
    for (size_t i = 0; i < stack.size(); ++i) {
      arguments[i] = py::cast(std::move(stack[i]).toTensor());
    }
    stack.clear();
    const py::object result = py::handle(callable_.toPyObject())(*arguments);
    if (py::isinstance<py::tuple>(result) || py::isinstance<py::list>(result)) {
      for (const py::handle item : result) stack.push_back(to_ivalue(item));
    } else {
      stack.push_back(to_ivalue(result));
    }
  }

 private:
  static c10::IValue to_ivalue(py::handle item) {
    return item.is_none() ? c10::IValue() : c10::IValue(py::cast<at::Tensor>(item));
  }

  c10::IValue callable_;
};

const c10::IValue& python_object(const ir::Node& node, const Objects& objects) {
  RANNC_CHECK(
      node.object.valid() && node.object.index < objects.size(),
      c10::str(place(node), " refers to object ", node.object.index, " of ", objects.size()));
  const c10::IValue& object = objects[node.object.index];
  RANNC_CHECK(object.isPyObject(), c10::str(place(node), ": its object is a ", object.tagKind(),
                                            ", not a Python object"));
  return object;
}

std::unique_ptr<Callee> resolve_operator(const ir::Node& node) {
  const size_t dot = node.op.find('.');
  const std::string overload = dot == std::string::npos ? "" : node.op.substr(dot + 1);
  const auto handle = c10::Dispatcher::singleton().findSchema({node.op.substr(0, dot), overload});
  if (!handle) {
    throw TraceError(c10::str(place(node), ": no operator '", node.op,
                              "' is registered in this process.\n  If a package registers it, "
                              "import that package on every rank before the first call."));
  }
  if (node.op == "aten::linear") return std::make_unique<LinearCallee>(*handle);
  return std::make_unique<DispatcherCallee>(*handle);
}

std::unique_ptr<Callee> resolve_scripted(const ir::Node& node, const Objects& objects) {
  const c10::IValue& object = python_object(node, objects);
  const py::gil_scoped_acquire gil;
  const py::handle function(object.toPyObject());
  if (!py::isinstance<torch::jit::StrongFunctionPtr>(function)) {
    throw TraceError(c10::str(place(node), ": expected a torch.jit.ScriptFunction, found ",
                              py::str(py::type::handle_of(function)).cast<std::string>()));
  }
  return std::make_unique<ScriptedCallee>(py::cast<torch::jit::StrongFunctionPtr>(function));
}

}  // namespace

std::unique_ptr<Callee> resolve(const ir::Node& node, const Objects& objects) {
  switch (node.kind) {
    case ir::OpKind::dispatcher:
      return resolve_operator(node);
    case ir::OpKind::scripted:
      return resolve_scripted(node, objects);
    case ir::OpKind::python:
      return std::make_unique<PythonCallee>(python_object(node, objects));
  }
  RANNC_CHECK(false, c10::str(place(node), " has an unknown kind"));
}

}  // namespace rannc::ops
