#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/predict/bucket_size.h"
#include "rannc/predict/step_memory.h"
#include "rannc/predict/step_time.h"

namespace rannc::bind {

using namespace py::literals;

void init_predict(py::module_& m) {
  py::class_<predict::StepCosts>(m, "StepCosts")
      .def(py::init([](double cores, double action_ns, double message_ns, double copy_ns_per_byte,
                       double accumulate_ns_per_byte, std::vector<double> optimizer_ns,
                       const std::vector<std::vector<std::pair<double, double>>>& measured,
                       std::vector<double> around_ns) {
             std::vector<std::vector<predict::MeasuredAction>> actions;
             for (const auto& rank : measured) {
               std::vector<predict::MeasuredAction>& converted = actions.emplace_back();
               for (const auto& [work, wait] : rank) converted.push_back({work, wait});
             }
             return predict::StepCosts{cores,
                                       action_ns,
                                       message_ns,
                                       copy_ns_per_byte,
                                       accumulate_ns_per_byte,
                                       std::move(optimizer_ns),
                                       std::move(actions),
                                       std::move(around_ns)};
           }),
           py::kw_only(), "cores"_a = 1.0, "action_ns"_a = 0.0, "message_ns"_a = 0.0,
           "copy_ns_per_byte"_a = 0.0, "accumulate_ns_per_byte"_a = 0.0,
           "optimizer_ns"_a = std::vector<double>(),
           "measured"_a = std::vector<std::vector<std::pair<double, double>>>(),
           "around_ns"_a = std::vector<double>());
  py::class_<predict::StepTime>(m, "StepTime")
      .def_readonly("ns", &predict::StepTime::ns)
      .def_readonly("idle_ns", &predict::StepTime::idle_ns);
  m.def("step_time", &predict::step_time, "program"_a, "plan"_a, "graph"_a, "profile"_a,
        "cluster"_a, "costs"_a, py::call_guard<py::gil_scoped_release>());
  m.def(
      "step_peak_bytes",
      [](const plan::Program& program, const plan::Plan& plan, const ir::Graph& graph,
         const cost::GraphProfile& profile,
         const std::vector<std::pair<std::vector<uint32_t>, std::vector<double>>>& saved,
         double optimizer_factor, std::vector<double> largest_bytes, std::vector<double> all_bytes,
         int64_t bucket_bytes) {
        std::vector<cost::SavedStorage> storages;
        for (const auto& [nodes, bytes] : saved) storages.push_back({nodes, bytes});
        return predict::step_peak_bytes(
            program, plan, graph, profile, storages,
            {optimizer_factor, std::move(largest_bytes), std::move(all_bytes)}, bucket_bytes);
      },
      "program"_a, "plan"_a, "graph"_a, "profile"_a, "saved"_a,
      "optimizer_bytes_per_param_byte"_a = 2.0, "largest_bytes"_a = std::vector<double>(),
      "all_bytes"_a = std::vector<double>(), "bucket_bytes"_a = plan::kBucketBytes,
      py::call_guard<py::gil_scoped_release>());
  m.def("bucket_bytes",
        py::overload_cast<const plan::Plan&, const cost::Cluster&>(&predict::bucket_bytes),
        "plan"_a, "cluster"_a);
}

}  // namespace rannc::bind
