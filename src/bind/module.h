#pragma once

#include <pybind11/pybind11.h>

// One function per binding file; module.cpp calls them. Only conversions live in these files.
namespace rannc::bind {

namespace py = pybind11;

void init_util(py::module_& m);
void init_ir(py::module_& m);
void init_cost(py::module_& m);
void init_plan(py::module_& m);
void init_predict(py::module_& m);
void init_partition(py::module_& m);
void init_comm(py::module_& m);
void init_frontend(py::module_& m);
void init_profile(py::module_& m);
void init_runtime(py::module_& m);
void init_executor(py::module_& m);  // called by init_runtime, into the same submodule

}  // namespace rannc::bind
