#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/predict/bucket_size.h"
#include "rannc/predict/measured_runs.h"
#include "rannc/predict/step_model.h"

namespace rannc::bind {

using namespace py::literals;
using predict::Calibration;
using predict::MeasuredAction;
using predict::MeasuredRuns;
using predict::OptimizerMemory;
using predict::RecordedAction;
using predict::RecordedRun;
using predict::StepCosts;
using predict::StepModel;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

/// (index, time that passed, time of the thread, end).
using Action = std::tuple<size_t, double, double, double>;

void init_runs(py::module_& m) {
  py::class_<RecordedRun>(m, "RecordedRun")
      .def(py::init([](std::string host, double seconds, double paging_seconds, double around_ns,
                       double compute_ns, double optimizer_ns, double optimizer_factor,
                       bool one_thread, const std::vector<Action>& actions) {
             RecordedRun run{std::move(host),  seconds,    paging_seconds,
                             around_ns,        compute_ns, optimizer_ns,
                             optimizer_factor, one_thread, {}};
             for (const auto& [action, passed_ns, cpu_ns, end_ns] : actions) {
               run.actions.push_back({action, passed_ns, cpu_ns, end_ns});
             }
             return run;
           }),
           py::kw_only(), "host"_a, "seconds"_a, "paging_seconds"_a = 0.0, "around_ns"_a = 0.0,
           "compute_ns"_a = 0.0, "optimizer_ns"_a = 0.0, "optimizer_factor"_a = 0.0,
           "one_thread"_a = true, "actions"_a = std::vector<Action>());
  py::class_<MeasuredAction>(m, "MeasuredAction")
      .def_readonly("work_ns", &MeasuredAction::work_ns)
      .def_readonly("wait_ns", &MeasuredAction::wait_ns);
  py::class_<MeasuredRuns>(m, "MeasuredRuns")
      .def_readonly("actions", &MeasuredRuns::actions)
      .def_readonly("around_ns", &MeasuredRuns::around_ns)
      .def_readonly("compute_ns", &MeasuredRuns::compute_ns)
      .def_readonly("optimizer_ns", &MeasuredRuns::optimizer_ns)
      .def_readonly("optimizer_factor", &MeasuredRuns::optimizer_factor)
      .def_readonly("run_ns", &MeasuredRuns::run_ns)
      .def_readwrite("shortest_ns", &MeasuredRuns::shortest_ns)  // tests decide which plan wins
      .def_readonly("all_ns", &MeasuredRuns::all_ns);
  m.def("summarize", &predict::summarize, "program"_a, "runs"_a, Unlocked());
}

void init_model(py::module_& m) {
  py::class_<StepCosts>(m, "StepCosts")
      .def(py::init([](double cores, double accumulate_ns_per_byte,
                       std::vector<double> optimizer_ns, bool in_order) {
             return StepCosts{.cores = cores,
                              .accumulate_ns_per_byte = accumulate_ns_per_byte,
                              .optimizer_ns = std::move(optimizer_ns),
                              .in_order = in_order};
           }),
           py::kw_only(), "cores"_a = 1.0, "accumulate_ns_per_byte"_a = 0.0,
           "optimizer_ns"_a = std::vector<double>(), "in_order"_a = false)
      .def_readonly("cores", &StepCosts::cores)
      .def_readonly("accumulate_ns_per_byte", &StepCosts::accumulate_ns_per_byte)
      .def_readonly("optimizer_ns", &StepCosts::optimizer_ns)
      .def_readonly("in_order", &StepCosts::in_order);
  py::class_<OptimizerMemory>(m, "OptimizerMemory")
      .def(py::init([](double state_factor, std::vector<double> largest_bytes,
                       std::vector<double> all_bytes) {
             return OptimizerMemory{state_factor, std::move(largest_bytes), std::move(all_bytes)};
           }),
           py::kw_only(), "state_factor"_a = 2.0, "largest_bytes"_a = std::vector<double>(),
           "all_bytes"_a = std::vector<double>())
      .def_readonly("largest_bytes", &OptimizerMemory::largest_bytes)
      .def_readonly("all_bytes", &OptimizerMemory::all_bytes);
  py::class_<Calibration>(m, "Calibration")
      .def_readonly("plan", &Calibration::plan)
      .def_readonly("beyond_ns", &Calibration::beyond_ns);
  py::class_<StepModel, std::shared_ptr<StepModel>>(m, "StepModel")
      .def(py::init<ir::Graph, cost::GraphProfile, cost::Cluster, StepCosts, OptimizerMemory,
                    std::vector<cost::SavedStorage>, std::vector<int64_t>, plan::Outputs>(),
           py::kw_only(), "graph"_a, "profile"_a, "cluster"_a, "costs"_a, "optimizer"_a, "saved"_a,
           "local_rows"_a, "outputs"_a = plan::Outputs::loss)
      .def("predict", &StepModel::predict, "plan"_a, Unlocked())
      .def("calibrated", &StepModel::calibrated, "plan"_a, "runs"_a, Unlocked())
      .def("at_speed", &StepModel::at_speed, "calibration"_a, "factors"_a, Unlocked())
      .def_property_readonly("profile", &StepModel::profile)
      .def_property_readonly("cluster", &StepModel::cluster)
      .def_property_readonly("costs", &StepModel::costs);
}

}  // namespace

void init_predict(py::module_& m) {
  init_runs(m);
  init_model(m);
  m.def("bucket_bytes",
        py::overload_cast<const plan::Plan&, const cost::Cluster&>(&predict::bucket_bytes),
        "plan"_a, "cluster"_a);
}

}  // namespace rannc::bind
