#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/util/error.h"
#include "rannc/util/host_memory.h"
#include "rannc/util/human.h"
#include "rannc/util/log.h"

namespace rannc::bind {

using namespace py::literals;

void init_util(py::module_& m) {
  const auto error = py::register_exception<Error>(m, "RaNNCError", PyExc_RuntimeError);
  py::register_exception<ConfigError>(m, "ConfigError", error);
  py::register_exception<TraceError>(m, "TraceError", error);
  py::register_exception<PlanError>(m, "PlanError", error);
  py::register_exception<InfeasibleError>(m, "InfeasibleError", error);
  py::register_exception<CommError>(m, "CommError", error);
  py::register_exception<InternalError>(m, "InternalError", PyExc_AssertionError);

  m.def("keep_freed_memory", &keep_freed_memory, "most_bytes"_a = -1,
        "Keeps freed memory in this process; False where the C library cannot.");
  m.def("give_back_freed_memory", &give_back_freed_memory,
        "Gives what is free now back to the system; False where the C library cannot.");
  m.def("human_bytes", &human_bytes, "bytes"_a);
  m.def("human_ns", &human_ns, "nanoseconds"_a);
  m.def("closest", &closest, "word"_a, "candidates"_a, "most"_a = SIZE_MAX);

  py::enum_<log::Level>(m, "Level")
      .value("debug", log::Level::debug)
      .value("info", log::Level::info)
      .value("warn", log::Level::warn)
      .value("error", log::Level::error)
      .value("off", log::Level::off);
  m.def("configure_log", &log::configure, "levels"_a);
  m.def("set_log_rank", &log::set_rank, "rank"_a);
  m.def("log_enabled", &log::enabled, "level"_a, "module"_a);
  m.def("log", &log::write, "level"_a, "module"_a, "message"_a);
}

}  // namespace rannc::bind
