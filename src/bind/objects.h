#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "rannc/ops/objects.h"
#include "rannc/ops/python_object.h"

namespace rannc::bind {

/// The side table of a capture from Python's list: tensors as tensors, everything else (scripted
/// functions, callables) as Python objects.
inline ops::Objects to_objects(const py::sequence& list) {
  ops::Objects objects;
  objects.reserve(list.size());
  for (const py::handle item : list) {
    if (THPVariable_Check(item.ptr())) {
      objects.emplace_back(py::cast<at::Tensor>(item));
    } else {
      objects.push_back(ops::hold_python(item.ptr()));
    }
  }
  return objects;
}

}  // namespace rannc::bind
