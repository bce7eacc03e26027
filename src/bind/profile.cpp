#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind/module.h"
#include "bind/objects.h"
#include "rannc/profile/measure.h"
#include "rannc/profile/replay.h"

namespace rannc::bind {
namespace {

using namespace py::literals;

/// [row index] (forward ns, backward ns, workspace bytes), by key; of an accelerator also the ns
/// that the host takes, forward and backward.
using Known = std::unordered_map<std::string, std::vector<std::vector<int64_t>>>;

profile::KnownCosts from_python(const Known& known) {
  profile::KnownCosts costs;
  for (const auto& [key, rows] : known) {
    std::vector<cost::NodeCost>& node = costs[key];
    for (const std::vector<int64_t>& at_rows : rows) {
      node.push_back({.forward_ns = at_rows.at(0),
                      .backward_ns = at_rows.at(1),
                      .workspace_bytes = at_rows.at(2)});
      if (at_rows.size() == 3) continue;
      node.back().forward_host_ns = at_rows.at(3);
      node.back().backward_host_ns = at_rows.at(4);
    }
  }
  return costs;
}

Known to_python(const profile::KnownCosts& costs) {
  Known known;
  for (const auto& [key, node] : costs) {
    for (const cost::NodeCost& at_rows : node) {
      std::vector<int64_t>& numbers = known[key].emplace_back(
          std::vector<int64_t>{at_rows.forward_ns, at_rows.backward_ns, at_rows.workspace_bytes});
      if (at_rows.forward_host_ns == 0 && at_rows.backward_host_ns == 0) continue;
      numbers.insert(numbers.end(), {at_rows.forward_host_ns, at_rows.backward_host_ns});
    }
  }
  return known;
}

std::pair<cost::CostTable, Known> measure(const ir::Graph& graph, const py::sequence& objects,
                                          const std::vector<std::vector<int64_t>>& saved,
                                          comm::Communicator& comm,
                                          const std::vector<int64_t>& rows,
                                          const std::vector<profile::OperandStrides>& strides,
                                          int repeats, const std::string& device,
                                          int64_t cache_bytes,
                                          const std::function<void(int, int)>& progress,
                                          const Known& known, const std::vector<int>& ranks) {
  const ops::Objects held = to_objects(objects);
  const profile::MeasureOptions options{.rows = rows,
                                        .repeats = repeats,
                                        .device = c10::Device(device),
                                        .cache_bytes = cache_bytes,
                                        .strides = strides,
                                        .progress = progress,
                                        .ranks = ranks};
  const py::gil_scoped_release unlocked;
  profile::KnownCosts costs = from_python(known);
  cost::CostTable table = profile::measure(graph, held, saved, comm, options, costs);
  return {std::move(table), to_python(costs)};
}

std::vector<std::string> keys(const ir::Graph& graph, const std::vector<int64_t>& rows,
                              const std::vector<profile::OperandStrides>& strides) {
  return profile::keys(graph, {.rows = rows, .strides = strides, .progress = {}});
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
        "cache_bytes"_a = 0, "progress"_a = py::none(), "known"_a = Known(),
        "ranks"_a = std::vector<int>());
  m.def("keys", &keys, "graph"_a, "rows"_a, "strides"_a = std::vector<profile::OperandStrides>());
  m.def("placeholders", &placeholders, "graph"_a, "rows"_a, "device"_a = "cpu");
  m.def("replay", &replay, "graph"_a, "objects"_a, "given"_a, "rows"_a, "before_node"_a,
        "device"_a = "cpu");
}

}  // namespace rannc::bind
