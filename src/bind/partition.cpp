#include <pybind11/functional.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/other_plans.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"

namespace rannc::bind {

using namespace py::literals;
using partition::Evaluation;
using partition::Force;
using partition::PlannerOptions;
using partition::Recompute;
using partition::Request;
using partition::StageEvaluation;

namespace {

Request make_request(int64_t global_batch, double gradient_factor, double optimizer_factor,
                     double memory_margin, std::vector<int64_t> micro_batches,
                     const std::vector<std::string>& schedules, int max_interleave,
                     Recompute recompute, int reduction_buckets, Force force) {
  Request request{.global_batch = global_batch,
                  .gradient_bytes_per_param_byte = gradient_factor,
                  .optimizer_bytes_per_param_byte = optimizer_factor,
                  .memory_margin = memory_margin,
                  .micro_batches = std::move(micro_batches),
                  .schedules = {},
                  .max_interleave = max_interleave,
                  .recompute = recompute,
                  .reduction_buckets = reduction_buckets,
                  .force = std::move(force)};
  for (const std::string& name : schedules) {
    request.schedules.push_back(plan::schedule_from_name(name));
  }
  return request;
}

Force make_force(std::optional<int> stages, std::optional<int64_t> micro_batches,
                 const std::optional<std::string>& schedule, std::optional<int> interleave,
                 std::optional<std::vector<int>> replicas) {
  Force force{.stages = stages,
              .micro_batches = micro_batches,
              .schedule = {},
              .interleave = interleave,
              .replicas = std::move(replicas)};
  if (schedule) force.schedule = plan::schedule_from_name(*schedule);
  return force;
}

Recompute recompute_from_name(const std::string& name) {
  // The file's reader knows the words and says which are allowed.
  return partition::request_from_json(
             "{\"format\": \"rannc-plan-request\", \"version\": 1, \"global_batch\": 1, "
             "\"recompute\": \"" +
             name + "\"}")
      .recompute;
}

}  // namespace

void init_partition(py::module_& m) {
  py::class_<Force>(m, "Force")
      .def(py::init(&make_force), py::kw_only(), "stages"_a = py::none(),
           "micro_batches"_a = py::none(), "schedule"_a = py::none(), "interleave"_a = py::none(),
           "replicas"_a = py::none())
      .def_readonly("stages", &Force::stages)
      .def_readonly("micro_batches", &Force::micro_batches)
      .def_readonly("interleave", &Force::interleave)
      .def_readonly("replicas", &Force::replicas);

  py::class_<Request>(m, "Request")
      .def(py::init([](int64_t global_batch, double gradient_factor, double optimizer_factor,
                       double memory_margin, std::vector<int64_t> micro_batches,
                       const std::vector<std::string>& schedules, int max_interleave,
                       const std::string& recompute, int reduction_buckets, Force force) {
             return make_request(global_batch, gradient_factor, optimizer_factor, memory_margin,
                                 std::move(micro_batches), schedules, max_interleave,
                                 recompute_from_name(recompute), reduction_buckets,
                                 std::move(force));
           }),
           "global_batch"_a, py::kw_only(), "gradient_bytes_per_param_byte"_a = 1.0,
           "optimizer_bytes_per_param_byte"_a = 2.0, "memory_margin"_a = 0.0,
           "micro_batches"_a = std::vector<int64_t>(),
           "schedules"_a = std::vector<std::string>{"gpipe", "1f1b"}, "max_interleave"_a = 1,
           "recompute"_a = "auto", "reduction_buckets"_a = 1, "force"_a = Force())
      .def_readonly("global_batch", &Request::global_batch)
      .def_readonly("micro_batches", &Request::micro_batches)
      .def_readonly("force", &Request::force)
      .def_static("from_json", &partition::request_from_json, "json"_a)
      .def("to_json", [](const Request& request) { return partition::to_json(request); })
      .def(py::self == py::self);
  m.def(
      "verify_request",
      [](const Request& request, int ranks) { partition::verify(request, ranks); }, "request"_a,
      "ranks"_a);

  py::class_<StageEvaluation>(m, "StageEvaluation")
      .def_readonly("rows", &StageEvaluation::rows)
      .def_readonly("forward_ns", &StageEvaluation::forward_ns)
      .def_readonly("backward_ns", &StageEvaluation::backward_ns)
      .def_readonly("reduce_ns", &StageEvaluation::reduce_ns)
      .def_readonly("param_bytes", &StageEvaluation::param_bytes)
      .def_readonly("gradient_bytes", &StageEvaluation::gradient_bytes)
      .def_readonly("optimizer_bytes", &StageEvaluation::optimizer_bytes)
      .def_readonly("activation_bytes", &StageEvaluation::activation_bytes)
      .def_readonly("buffer_bytes", &StageEvaluation::buffer_bytes)
      .def_readonly("workspace_bytes", &StageEvaluation::workspace_bytes)
      .def_readonly("peak_bytes", &StageEvaluation::peak_bytes);
  py::class_<Evaluation>(m, "Evaluation")
      .def_readonly("problems", &Evaluation::problems)
      .def_readonly("iteration_ns", &Evaluation::iteration_ns)
      .def_readonly("iteration_price", &Evaluation::iteration_price)
      .def_readonly("stages", &Evaluation::stages);

  m.def(
      "make_plan",
      [](const cost::GraphProfile& profile, const cost::Cluster& cluster, const Request& request,
         double room, double in_step, bool exactly, int max_blocks, bool one_replica, int threads) {
        partition::PlannerOptions options;
        options.room = {.added = room, .in_step = in_step};
        options.exactly = exactly;
        options.max_blocks = max_blocks;
        options.one_replica = one_replica;
        options.threads = threads;
        return partition::make_plan(profile, cluster, request, options);
      },
      "profile"_a, "cluster"_a, "request"_a, py::kw_only(), "room"_a = 1.0, "in_step"_a = 1.0,
      "exactly"_a = true, "max_blocks"_a = 0, "one_replica"_a = false, "threads"_a = 1,
      py::call_guard<py::gil_scoped_release>());
  m.def("with_micro_batches", &partition::with_micro_batches, "profile"_a, "cluster"_a, "request"_a,
        "plan"_a, "count"_a, "room"_a = 1.0, py::call_guard<py::gil_scoped_release>());
  m.def(
      "plan_of_shape",
      [](const cost::GraphProfile& profile, const cost::Cluster& cluster, const Request& request,
         const plan::Plan& found, const std::vector<int>& replicas, const std::string& schedule,
         int interleave, double room, double in_step,
         std::function<double(const plan::Plan&)> step_bytes, double step_limit_bytes, bool exactly,
         int max_blocks, bool one_replica) {
        partition::PlannerOptions options;
        options.room = {room, in_step, std::move(step_bytes), step_limit_bytes};
        options.exactly = exactly;
        options.max_blocks = max_blocks;
        options.one_replica = one_replica;
        return partition::plan_of_shape(profile, cluster, request, options, found,
                                        {replicas, plan::schedule_from_name(schedule), interleave});
      },
      "profile"_a, "cluster"_a, "request"_a, "found"_a, py::kw_only(), "replicas"_a, "schedule"_a,
      "interleave"_a, "room"_a = 1.0, "in_step"_a = 1.0,
      "step_bytes"_a = std::function<double(const plan::Plan&)>(), "step_limit_bytes"_a = 0.0,
      "exactly"_a = true, "max_blocks"_a = 0, "one_replica"_a = false,
      py::call_guard<py::gil_scoped_release>());
  m.def("evaluate", &partition::evaluate, "profile"_a, "cluster"_a, "request"_a, "plan"_a,
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace rannc::bind
