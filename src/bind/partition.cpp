#include <pybind11/functional.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/partition/candidates.h"
#include "rannc/partition/evaluate.h"
#include "rannc/partition/other_plans.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"
#include "rannc/predict/step_model.h"

namespace rannc::bind {

using namespace py::literals;
using partition::Allowed;
using partition::Arrangement;
using partition::Candidates;
using partition::Evaluation;
using partition::Force;
using partition::Pin;
using partition::PlannerOptions;
using partition::Recompute;
using partition::Request;
using partition::StageEvaluation;
using partition::TriedPlan;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

Request make_request(int64_t global_batch, double gradient_factor, double optimizer_factor,
                     double memory_margin, std::vector<int64_t> micro_batches,
                     const std::vector<std::string>& schedules, int max_interleave,
                     Recompute recompute, int reduction_buckets, Force force, double master_factor,
                     bool shard_optimizer) {
  Request request{.global_batch = global_batch,
                  .gradient_bytes_per_param_byte = gradient_factor,
                  .optimizer_bytes_per_param_byte = optimizer_factor,
                  .memory_margin = memory_margin,
                  .micro_batches = std::move(micro_batches),
                  .schedules = {},
                  .max_interleave = max_interleave,
                  .recompute = recompute,
                  .reduction_buckets = reduction_buckets,
                  .force = std::move(force),
                  .master_bytes_per_param_byte = master_factor,
                  .shard_optimizer = shard_optimizer};
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

std::vector<std::string_view> schedule_names(const Request& request) {
  std::vector<std::string_view> names;
  for (const plan::Schedule schedule : request.schedules) names.push_back(plan::name(schedule));
  return names;
}

void init_request(py::module_& m) {
  py::class_<Force>(m, "Force")
      .def(py::init(&make_force), py::kw_only(), "stages"_a = py::none(),
           "micro_batches"_a = py::none(), "schedule"_a = py::none(), "interleave"_a = py::none(),
           "replicas"_a = py::none())
      .def_readonly("stages", &Force::stages)
      .def_readonly("micro_batches", &Force::micro_batches)
      .def_property_readonly("schedule",
                             [](const Force& force) {
                               return force.schedule ? std::optional(plan::name(*force.schedule))
                                                     : std::nullopt;
                             })
      .def_readonly("interleave", &Force::interleave)
      .def_readonly("replicas", &Force::replicas);

  py::class_<Request>(m, "Request")
      .def(py::init([](int64_t global_batch, double gradient_factor, double optimizer_factor,
                       double memory_margin, std::vector<int64_t> micro_batches,
                       const std::vector<std::string>& schedules, int max_interleave,
                       const std::string& recompute, int reduction_buckets, Force force,
                       double master_factor, bool shard_optimizer) {
             return make_request(global_batch, gradient_factor, optimizer_factor, memory_margin,
                                 std::move(micro_batches), schedules, max_interleave,
                                 partition::recompute_from_name(recompute), reduction_buckets,
                                 std::move(force), master_factor, shard_optimizer);
           }),
           "global_batch"_a, py::kw_only(), "gradient_bytes_per_param_byte"_a = 1.0,
           "optimizer_bytes_per_param_byte"_a = 2.0, "memory_margin"_a = 0.0,
           "micro_batches"_a = std::vector<int64_t>(),
           "schedules"_a = std::vector<std::string>{"gpipe", "1f1b"}, "max_interleave"_a = 1,
           "recompute"_a = "stage", "reduction_buckets"_a = 1, "force"_a = Force(),
           "master_bytes_per_param_byte"_a = 0.0, "shard_optimizer"_a = false)
      .def_readonly("global_batch", &Request::global_batch)
      .def_readonly("gradient_bytes_per_param_byte", &Request::gradient_bytes_per_param_byte)
      .def_readonly("optimizer_bytes_per_param_byte", &Request::optimizer_bytes_per_param_byte)
      .def_readonly("memory_margin", &Request::memory_margin)
      .def_readonly("micro_batches", &Request::micro_batches)
      .def_property_readonly("schedules", &schedule_names)
      .def_readonly("max_interleave", &Request::max_interleave)
      .def_property_readonly(
          "recompute", [](const Request& request) { return partition::name(request.recompute); })
      .def_readonly("reduction_buckets", &Request::reduction_buckets)
      .def_readonly("force", &Request::force)
      .def_static("from_json", &partition::request_from_json, "json"_a)
      .def("to_json", [](const Request& request) { return partition::to_json(request); })
      .def(py::self == py::self);
  m.def(
      "verify_request",
      [](const Request& request, int ranks) { partition::verify(request, ranks); }, "request"_a,
      "ranks"_a);
}

void init_options(py::module_& m) {
  py::class_<Pin>(m, "Pin")
      .def(py::init([](std::string module, int stage) {
             return Pin{std::move(module), stage};
           }),
           "module"_a, "stage"_a)
      .def_readonly("module", &Pin::module)
      .def_readonly("stage", &Pin::stage);
  py::class_<PlannerOptions>(m, "PlannerOptions")
      .def(py::init([](int max_blocks, bool one_replica, std::vector<Pin> pins,
                       std::vector<std::string> whole, double time_limit_s, int threads,
                       bool exactly, std::function<void(double)> progress) {
             return PlannerOptions{.max_blocks = max_blocks,
                                   .one_replica = one_replica,
                                   .pins = std::move(pins),
                                   .whole = std::move(whole),
                                   .time_limit_s = time_limit_s,
                                   .threads = threads,
                                   .progress = std::move(progress),
                                   .exactly = exactly};
           }),
           py::kw_only(), "max_blocks"_a = 0, "one_replica"_a = false,
           "pins"_a = std::vector<Pin>(), "whole"_a = std::vector<std::string>(),
           "time_limit_s"_a = 0.0, "threads"_a = 1, "exactly"_a = true, "progress"_a = py::none())
      .def_readonly("max_blocks", &PlannerOptions::max_blocks)
      .def_readonly("one_replica", &PlannerOptions::one_replica)
      .def_readonly("pins", &PlannerOptions::pins)
      .def_readonly("whole", &PlannerOptions::whole)
      .def_readonly("time_limit_s", &PlannerOptions::time_limit_s)
      .def_readonly("threads", &PlannerOptions::threads)
      .def_readonly("exactly", &PlannerOptions::exactly);
}

void init_evaluation(py::module_& m) {
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

  m.def("evaluate", &partition::evaluate, "profile"_a, "cluster"_a, "request"_a, "plan"_a,
        Unlocked());
  m.def("described", &partition::described, "profile"_a, "cluster"_a, "request"_a, "plan"_a,
        "evaluation"_a, Unlocked());
}

void init_planner(py::module_& m) {
  py::class_<Arrangement>(m, "Arrangement")
      .def(
          py::init([](std::vector<int> replicas, const std::string& schedule, int interleave) {
            return Arrangement{std::move(replicas), plan::schedule_from_name(schedule), interleave};
          }),
          "replicas"_a, "schedule"_a, "interleave"_a = 1)
      .def_readonly("replicas", &Arrangement::replicas)
      .def_property_readonly(
          "schedule",
          [](const Arrangement& arrangement) { return plan::name(arrangement.schedule); })
      .def_readonly("interleave", &Arrangement::interleave)
      .def(py::self == py::self);
  m.def("arrangement_of", &partition::arrangement_of, "plan"_a);
  py::class_<TriedPlan>(m, "TriedPlan")
      .def(py::init<Arrangement, int64_t, double>(), "arrangement"_a, "micro_batches"_a,
           "run_ns"_a);

  py::class_<Allowed>(m, "Allowed")
      .def(py::init<int64_t, bool, bool>(), py::kw_only(), "least_rows"_a = 1,
           "powers_of_two"_a = false, "fewest_stages"_a = false);
  py::class_<Candidates>(m, "Candidates")
      .def(py::init([](std::shared_ptr<predict::StepModel> step, Request request,
                       PlannerOptions options, Allowed allowed, double held_bytes) {
             return Candidates(std::move(step), std::move(request), std::move(options), allowed,
                               held_bytes);
           }),
           "step"_a, "request"_a, "options"_a, "allowed"_a, "held_bytes"_a)
      .def("best", &Candidates::best, Unlocked())
      .def("limit_memory", &Candidates::limit_memory, "device_bytes"_a, Unlocked())
      .def("with_micro_batches", &Candidates::with_micro_batches, "plan"_a, "count"_a, Unlocked())
      .def("of_other_arrangements", &Candidates::of_other_arrangements, "plan"_a, "slower_by"_a,
           Unlocked())
      .def("other_micro_batches", &Candidates::other_micro_batches, "plan"_a);

  m.def("with_trials", &partition::with_trials, "plan"_a, "arrangements"_a, "numbers"_a);
  m.def("make_plan", &partition::make_plan, "profile"_a, "cluster"_a, "request"_a,
        "options"_a = PlannerOptions(), Unlocked());
}

}  // namespace

void init_partition(py::module_& m) {
  init_request(m);
  init_options(m);
  init_evaluation(m);
  init_planner(m);
}

}  // namespace rannc::bind
