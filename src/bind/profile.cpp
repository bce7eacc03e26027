#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind/module.h"
#include "bind/objects.h"
#include "rannc/profile/measure.h"
#include "rannc/profile/replay.h"

namespace rannc::bind {
namespace {

using namespace py::literals;

cost::CostTable measure(const ir::Graph& graph, const py::sequence& objects,
                        const std::vector<std::vector<int64_t>>& saved, comm::Communicator& comm,
                        const std::vector<int64_t>& rows,
                        const std::vector<profile::OperandStrides>& strides, int repeats,
                        const std::string& device, const std::function<void(int, int)>& progress) {
  const ops::Objects held = to_objects(objects);
  const profile::MeasureOptions options{.rows = rows,
                                        .repeats = repeats,
                                        .device = c10::Device(device),
                                        .strides = strides,
                                        .progress = progress};
  const py::gil_scoped_release unlocked;
  return profile::measure(graph, held, saved, comm, options);
}

void replay(const ir::Graph& graph, const py::sequence& objects,
            const std::vector<at::Tensor>& given, int64_t rows,
            const profile::BeforeNode& before_node, const std::string& device) {
  const ops::Objects held = to_objects(objects);
  const py::gil_scoped_release unlocked;
  profile::replay(graph, held, given, rows, c10::Device(device), before_node);
}

py::tuple placeholders(const ir::Graph& graph, int64_t rows, const std::string& device) {
  profile::Placeholders made = profile::placeholders(graph, rows, c10::Device(device));
  return py::make_tuple(std::move(made.tensors), std::move(made.is_input));
}

}  // namespace

void init_profile(py::module_& m) {
  m.def("measure", &measure, "graph"_a, "objects"_a, "saved"_a, "comm"_a, "rows"_a,
        "strides"_a = std::vector<profile::OperandStrides>(), "repeats"_a = 5, "device"_a = "cpu",
        "progress"_a = py::none());
  m.def("placeholders", &placeholders, "graph"_a, "rows"_a, "device"_a = "cpu");
  m.def("replay", &replay, "graph"_a, "objects"_a, "given"_a, "rows"_a, "before_node"_a,
        "device"_a = "cpu");
}

}  // namespace rannc::bind
