#include "rannc/ops/python_object.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <Python.h>  // first, as Python's manual demands

#include <string>

#include "rannc/util/error.h"

namespace rannc::ops {
namespace {

class Holder final : public c10::ivalue::PyObjectHolder {
 public:
  explicit Holder(PyObject* object) : object_(object) { Py_INCREF(object_); }

  ~Holder() override {
    if (!Py_IsInitialized()) return;  // the interpreter took its objects with it
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(object_);
    PyGILState_Release(state);
  }

  PyObject* getPyObject() override { return object_; }
  std::string toStr() override { return "a Python object"; }

  // TorchScript asks these when it has to give the object a type, which no graph of ours does.
  c10::InferredType tryToInferType() override {
    return {"Python objects have no TorchScript type"};
  }
  c10::IValue toIValue(const c10::TypePtr&, std::optional<int32_t>) override { unused(); }
  std::vector<at::Tensor> extractTensors() override { unused(); }

 private:
  [[noreturn]] static void unused() {
    throw InternalError("a Python object of a capture was used as a TorchScript value");
  }

  PyObject* object_;
};

}  // namespace

c10::IValue hold_python(PyObject* object) {
  return c10::IValue(
      c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<Holder>(object)));
}

}  // namespace rannc::ops
