#include "bind/module.h"

namespace py = pybind11;
using namespace rannc::bind;

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of RaNNC; use the package pyrannc instead.";
  m.attr("torch_version") = RANNC_TORCH_VERSION;
  const auto add = [&](const char* name, void (*init)(py::module_&)) {
    py::module_ submodule = m.def_submodule(name);
    init(submodule);
  };
  add("util", init_util);
  add("ir", init_ir);
  add("cost", init_cost);
  add("plan", init_plan);
  add("predict", init_predict);
  add("partition", init_partition);
  add("comm", init_comm);
  add("frontend", init_frontend);
  add("profile", init_profile);
  add("runtime", init_runtime);
}
