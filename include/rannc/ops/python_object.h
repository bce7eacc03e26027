#pragma once

#include <ATen/core/ivalue.h>
#include <Python.h>

namespace rannc::ops {

/// A Python object as an IValue (a new reference; the last copy gives it back under the GIL).
/// torch's own ConcretePyObjectHolder needs a function that libtorch_python does not export.
/// Needs the GIL.
[[nodiscard]] c10::IValue hold_python(PyObject* object);

}  // namespace rannc::ops
