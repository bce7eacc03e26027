#include <ATen/ThreadLocalState.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "bind/module.h"
#include "bind/objects.h"
#include "rannc/frontend/capture.h"
#include "rannc/frontend/same_operator.h"
#include "rannc/frontend/tracer.h"
#include "rannc/ops/python_object.h"
#include "rannc/util/error.h"

namespace rannc::bind {
namespace {

using namespace pybind11::literals;

/// An argument of an operator: a tensor, a literal, or a list of them.
c10::IValue to_ivalue(py::handle object) {
  PyObject* raw = object.ptr();
  if (object.is_none()) return {};
  if (THPVariable_Check(raw)) return c10::IValue(py::cast<at::Tensor>(object));
  if (PyBool_Check(raw)) return c10::IValue(py::cast<bool>(object));
  if (PyLong_Check(raw)) return c10::IValue(py::cast<int64_t>(object));
  if (PyFloat_Check(raw)) return c10::IValue(py::cast<double>(object));
  if (PyUnicode_Check(raw)) return c10::IValue(py::cast<std::string>(object));
  if (THPDevice_Check(raw)) return c10::IValue(reinterpret_cast<THPDevice*>(raw)->device);
  if (THPDtype_Check(raw)) {
    return c10::IValue(static_cast<int64_t>(reinterpret_cast<THPDtype*>(raw)->scalar_type));
  }
  if (THPLayout_Check(raw)) {
    return c10::IValue(static_cast<int64_t>(reinterpret_cast<THPLayout*>(raw)->layout));
  }
  if (THPMemoryFormat_Check(raw)) {
    return c10::IValue(
        static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(raw)->memory_format));
  }
  if (PyTuple_Check(raw) || PyList_Check(raw)) {
    const py::sequence items = py::reinterpret_borrow<py::sequence>(object);
    if (py::len(items) == 0) return c10::IValue(std::vector<int64_t>{});
    PyObject* first = py::object(items[0]).ptr();
    if (THPVariable_Check(first)) return c10::IValue(py::cast<std::vector<at::Tensor>>(object));
    if (PyBool_Check(first)) {
      c10::List<bool> list;
      for (const auto item : items) list.push_back(py::cast<bool>(item));
      return c10::IValue(list);
    }
    if (PyLong_Check(first)) return c10::IValue(py::cast<std::vector<int64_t>>(object));
    if (PyFloat_Check(first)) return c10::IValue(py::cast<std::vector<double>>(object));
  }
  throw TraceError("an argument of type " +
                   py::cast<std::string>(py::str(py::type::handle_of(object))) +
                   " cannot be recorded");
}

std::vector<c10::IValue> to_ivalues(const py::sequence& objects) {
  std::vector<c10::IValue> values;
  for (const auto object : objects) values.push_back(to_ivalue(object));
  return values;
}

/// None stands for an undefined tensor.
std::vector<at::Tensor> to_tensors(const py::sequence& objects) {
  std::vector<at::Tensor> tensors;
  for (const auto object : objects) {
    tensors.push_back(object.is_none() ? at::Tensor() : py::cast<at::Tensor>(object));
  }
  return tensors;
}

py::list to_python(const std::vector<c10::IValue>& objects) {
  py::list list;
  for (const c10::IValue& object : objects) {
    if (object.isTensor()) {
      list.append(py::cast(object.toTensor()));
    } else {
      list.append(py::reinterpret_borrow<py::object>(object.toPyObject()));
    }
  }
  return list;
}

/// What torch keeps per thread (grad and inference mode, autocast, default device), carried from
/// the thread that makes it into the one that enters it.
class ThreadState {
 public:
  void enter() { guard_ = std::make_unique<at::ThreadLocalStateGuard>(state_); }
  void leave() { guard_.reset(); }

 private:
  at::ThreadLocalState state_;
  std::unique_ptr<at::ThreadLocalStateGuard> guard_;
};

}  // namespace

void init_frontend(py::module_& m) {
  py::class_<ThreadState>(m, "ThreadState")
      .def(py::init<>())
      .def("__enter__", &ThreadState::enter)
      .def("__exit__", [](ThreadState& self, const py::args&) { self.leave(); });

  m.def("same_operator", &frontend::same_operator, "op"_a,
        "The operator of torch's own that computes the same; empty where there is none.");

  py::class_<frontend::Trace>(m, "Trace")
      .def(py::init([](int64_t rows, const ir::Graph& graph, const py::sequence& objects) {
             return frontend::Trace{rows, {graph, to_objects(objects)}};
           }),
           "rows"_a, "graph"_a, "objects"_a)
      .def_readonly("rows", &frontend::Trace::rows)
      .def_property_readonly("graph",
                             [](const frontend::Trace& self) { return self.capture.graph; })
      .def_property_readonly(
          "objects", [](const frontend::Trace& self) { return to_python(self.capture.objects); });

  py::class_<frontend::Capture>(m, "Capture")
      .def(py::init([](const ir::Graph& graph, const py::sequence& objects) {
             return frontend::Capture{graph, to_objects(objects)};
           }),
           "graph"_a, "objects"_a)
      .def_readwrite("graph", &frontend::Capture::graph)
      .def_property_readonly("objects",
                             [](const frontend::Capture& self) { return to_python(self.objects); });

  using frontend::Tracer;
  py::class_<Tracer>(m, "Tracer")
      .def(py::init<std::string, std::string>(), "torch_path"_a, "own_path"_a)
      .def("add_input", &Tracer::add_input, "name"_a, "tensor"_a, "batch_dim"_a)
      .def("add_parameter",
           [](Tracer& self, std::vector<std::string> names, const at::Tensor& tensor,
              const at::Tensor& original) {
             self.add_state(ir::ValueKind::parameter, std::move(names), tensor, original);
           })
      .def("add_buffer",
           [](Tracer& self, std::vector<std::string> names, const at::Tensor& tensor,
              const at::Tensor& original) {
             self.add_state(ir::ValueKind::buffer, std::move(names), tensor, original);
           })
      .def("name_constant", &Tracer::name_constant, "tensor"_a, "name"_a)
      .def("start", &Tracer::start)
      .def("stop", &Tracer::stop)
      .def("enter_module", &Tracer::enter_module, "path"_a)
      .def("leave_module", &Tracer::leave_module)
      .def("module", &Tracer::module)
      .def("hide", &Tracer::hide)
      .def("show", &Tracer::show)
      .def("unrecorded", &Tracer::unrecorded)
      .def("record_operator",
           [](Tracer& self, const std::string& name, const py::sequence& arguments,
              const py::sequence& outputs, bool below_autograd) {
             self.record_operator(name, to_ivalues(arguments), to_tensors(outputs), below_autograd);
           })
      .def("record_python",
           [](Tracer& self, const std::string& op, const py::object& object,
              const py::sequence& arguments, const py::sequence& outputs,
              const py::sequence& written) {
             self.record_object(ir::OpKind::python, op, ops::hold_python(object.ptr()),
                                to_ivalues(arguments), to_tensors(outputs), to_tensors(written));
           })
      .def("describe_python",
           [](Tracer& self, const std::string& op, const py::object& object,
              const py::sequence& outputs, const py::sequence& written) {
             self.describe_python(op, ops::hold_python(object.ptr()), to_tensors(outputs),
                                  to_tensors(written));
           })
      .def("record_scripted",
           [](Tracer& self, const std::string& op, const py::object& object,
              const py::sequence& arguments, const py::sequence& outputs,
              const py::sequence& written) {
             self.record_object(ir::OpKind::scripted, op, ops::hold_python(object.ptr()),
                                to_ivalues(arguments), to_tensors(outputs), to_tensors(written));
           })
      .def("record_constant", &Tracer::record_constant, "tensor"_a, "value"_a)
      .def("record_number",
           [](Tracer& self, const at::Tensor& tensor, const py::object& number) {
             self.record_number(tensor, to_ivalues(py::make_tuple(number)).front());
           })
      .def("finish",
           [](Tracer& self, const std::string& name, int64_t rows, const py::sequence& outputs) {
             return self.finish(name, rows, to_tensors(outputs));
           });

  m.def("join", &frontend::join, "traces"_a);
}

}  // namespace rannc::bind
