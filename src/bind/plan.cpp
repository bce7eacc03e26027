#include "rannc/plan/plan.h"

#include <pybind11/stl.h>

#include "bind/module.h"
#include "rannc/plan/buckets.h"
#include "rannc/plan/groups.h"
#include "rannc/plan/layout.h"
#include "rannc/plan/mesh.h"
#include "rannc/plan/outside_loss/beside_loss.h"
#include "rannc/plan/outside_loss/fill_drain.h"
#include "rannc/plan/program.h"
#include "rannc/plan/ranks/shared_parameters.h"
#include "rannc/plan/recompute.h"
#include "rannc/plan/show.h"
#include "rannc/plan/simulate.h"
#include "rannc/plan/trace.h"

namespace rannc::bind {

using namespace py::literals;

namespace {

void init_plans(py::module_& m) {
  py::class_<plan::Prediction>(m, "Prediction")
      .def_readonly("rows", &plan::Prediction::rows)
      .def_readonly("forward_ns", &plan::Prediction::forward_ns)
      .def_readonly("backward_ns", &plan::Prediction::backward_ns)
      .def_readonly("reduce_ns", &plan::Prediction::reduce_ns)
      .def_readonly("param_bytes", &plan::Prediction::param_bytes)
      .def_readonly("gradient_bytes", &plan::Prediction::gradient_bytes)
      .def_readonly("optimizer_bytes", &plan::Prediction::optimizer_bytes)
      .def_readonly("activation_bytes", &plan::Prediction::activation_bytes)
      .def_readonly("buffer_bytes", &plan::Prediction::buffer_bytes)
      .def_readonly("workspace_bytes", &plan::Prediction::workspace_bytes)
      .def_readonly("peak_bytes", &plan::Prediction::peak_bytes);

  py::class_<plan::Stage>(m, "Stage")
      .def_readonly("nodes", &plan::Stage::nodes)
      .def_readonly("ranks", &plan::Stage::ranks)
      .def_property_readonly(
          "replicas", [](const plan::Stage& stage) { return plan::mesh_of(stage).replicas(); })
      .def_property_readonly("places",
                             [](const plan::Stage& stage) { return plan::mesh_of(stage).places(); })
      .def(
          "replica_of",
          [](const plan::Stage& stage, plan::Rank rank) {
            return plan::mesh_of(stage).replica_of(rank);
          },
          "rank"_a)
      .def(
          "place_of",
          [](const plan::Stage& stage, plan::Rank rank) {
            return plan::mesh_of(stage).place_of(rank);
          },
          "rank"_a)
      .def(
          "ranks_of_replica",
          [](const plan::Stage& stage, int replica) {
            const auto ranks = plan::mesh_of(stage).ranks_of_replica(replica);
            return std::vector<plan::Rank>(ranks.begin(), ranks.end());
          },
          "replica"_a)
      .def(
          "ranks_of_place",
          [](const plan::Stage& stage, int place) {
            return plan::mesh_of(stage).ranks_of_place(place);
          },
          "place"_a)
      .def_property_readonly("recompute", &plan::Stage::runs_again)
      .def_readonly("segments", &plan::Stage::segments)
      .def_readonly("factors", &plan::Stage::factors)
      .def_readonly("shared", &plan::Stage::shared)
      .def_property_readonly("places", [](const plan::Stage& stage) { return stage.axes.places(); })
      .def_readonly("predicted", &plan::Stage::predicted)
      .def_readonly("notes", &plan::Stage::notes);

  py::class_<plan::MadeFor>(m, "MadeFor")
      .def_readonly("fingerprint", &plan::MadeFor::fingerprint)
      .def_readonly("global_batch", &plan::MadeFor::global_batch)
      .def_readonly("world", &plan::MadeFor::world);

  py::class_<plan::StepPrediction>(m, "StepPrediction")
      .def_readonly("ns", &plan::StepPrediction::ns)
      .def_readonly("idle_ns", &plan::StepPrediction::idle_ns)
      .def_readonly("bubble_ns", &plan::StepPrediction::bubble_ns)
      .def_readonly("peak_bytes", &plan::StepPrediction::peak_bytes)
      .def_readonly("from_operators_ns", &plan::StepPrediction::from_operators_ns);

  py::class_<plan::Plan>(m, "Plan")
      .def_static(
          "from_json", [](const std::string& json) { return plan::plan_from_json(json); }, "json"_a)
      .def("to_json", [](const plan::Plan& plan) { return plan::to_json(plan); })
      .def("to_indented_json", &plan::to_indented_json)
      .def("_repr_html_",
           [](const py::object& self) {
             return py::module_::import("pyrannc.show.notebook").attr("html")(self);
           })
      .def("__str__", [](const plan::Plan& plan) { return plan::show(plan); })
      .def("__repr__",
           [](const plan::Plan& plan) { return "<Plan: " + plan::headline(plan) + ">"; })
      .def_readonly("feasible", &plan::Plan::feasible)
      .def_readonly("reason", &plan::Plan::reason)
      .def_property_readonly("schedule",
                             [](const plan::Plan& plan) { return plan::name(plan.schedule); })
      .def_readonly("interleave", &plan::Plan::interleave)
      .def_readonly("micro_batches", &plan::Plan::micro_batches)
      .def_readonly("iteration_ns", &plan::Plan::iteration_ns)
      .def_readonly("stages", &plan::Plan::stages)
      .def_readonly("made_for", &plan::Plan::made_for)
      .def_readonly("step", &plan::Plan::step)
      .def_readonly("bucket_bytes", &plan::Plan::bucket_bytes)
      .def_readwrite("shard_optimizer", &plan::Plan::shard_optimizer)
      .def_readonly("notes", &plan::Plan::notes)
      .def(
          "__eq__", [](const plan::Plan& a, const plan::Plan& b) { return a == b; }, "other"_a);

  py::class_<plan::StageSummary>(m, "StageSummary")
      .def_readonly("modules", &plan::StageSummary::modules)
      .def_readonly("ranks", &plan::StageSummary::ranks)
      .def_readonly("param_bytes", &plan::StageSummary::param_bytes)
      .def_readonly("send_bytes", &plan::StageSummary::send_bytes)
      .def_readonly("predicted", &plan::StageSummary::predicted)
      .def_readonly("recompute", &plan::StageSummary::recompute);

  m.def("show", &plan::show, "plan"_a, "width"_a = plan::kPageWidth, "global_batch"_a = py::none(),
        "with_names"_a = false);
  m.def(
      "headline", [](const plan::Plan& plan) { return plan::headline(plan); }, "plan"_a);
  m.def("without_recompute", &plan::without_recompute, "plan"_a);
  m.def("show_dot", &plan::show_dot, "plan"_a, "graph"_a, "stage"_a = py::none());
  m.def("verify", py::overload_cast<const plan::Plan&, const ir::Graph&, int>(&plan::verify),
        "plan"_a, "graph"_a, "world"_a, py::call_guard<py::gil_scoped_release>());
  m.def("map_to", &plan::map_to, "plan"_a, "from_graph"_a, "to_graph"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("fill_drain", &plan::fill_drain, "plan"_a);
  m.def(
      "share_parameters",
      [](const plan::Plan& plan, const ir::Graph& graph, const std::vector<ir::Graph>& preludes,
         std::vector<std::string> left_out) {
        for (const ir::Graph& prelude : preludes) {
          for (const ir::Value& value : prelude.values) left_out.push_back(value.name);
        }
        return plan::share_parameters(plan, graph, left_out);
      },
      "plan"_a, "graph"_a, "preludes"_a, "left_out"_a = std::vector<std::string>(),
      py::call_guard<py::gil_scoped_release>());
  m.def("without_shared_parameters", &plan::without_shared_parameters, "plan"_a);
  m.def("on_one_replica", &plan::on_one_replica, "plan"_a);
  m.def("summarize", &plan::summarize, "plan"_a, "graph"_a, "global_rows"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("with_summary", &plan::with_summary, "plan"_a, "graph"_a, "global_rows"_a,
        py::call_guard<py::gil_scoped_release>());
}

using PythonBox = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
using PythonPart = std::tuple<std::vector<plan::Rank>, std::vector<PythonBox>,
                              std::optional<std::pair<int64_t, int64_t>>>;
using PythonRun = std::tuple<int64_t, int64_t, int64_t>;

plan::Layout layout_of(std::string tensor, std::vector<int64_t> shape,
                       const std::vector<PythonPart>& parts) {
  std::vector<plan::Layout::Holders> holders;
  for (const auto& [ranks, boxes, range] : parts) {
    plan::Part part{{}, range};
    for (const auto& [begin, size] : boxes) part.boxes.push_back({begin, size});
    holders.push_back({std::move(part), ranks});
  }
  return {std::move(tensor), std::move(shape), std::move(holders)};
}

std::vector<PythonPart> parts_of(const plan::Layout& layout) {
  std::vector<PythonPart> parts;
  for (const plan::Layout::Holders& holders : layout.parts()) {
    std::vector<PythonBox> boxes;
    for (const plan::Box& box : holders.part.boxes) boxes.emplace_back(box.begin, box.size);
    parts.emplace_back(holders.ranks, std::move(boxes), holders.part.range);
  }
  return parts;
}

std::vector<PythonRun> runs_of(const std::vector<plan::Run>& runs) {
  std::vector<PythonRun> tuples;
  tuples.reserve(runs.size());
  for (const plan::Run& run : runs) tuples.emplace_back(run.from, run.to, run.count);
  return tuples;
}

void init_layouts(py::module_& m) {
  py::class_<plan::Answer>(m, "Answer")
      .def_readonly("rank", &plan::Answer::rank)
      .def_property_readonly(
          "runs", [](const plan::Answer& answer) { return runs_of(answer.runs); },
          "(place in the whole tensor, place in the rank's array, count) of each run of numbers.");

  py::class_<plan::Move>(m, "Move")
      .def_readonly("from_rank", &plan::Move::from)
      .def_readonly("to_rank", &plan::Move::to)
      .def_property_readonly("numel", &plan::Move::numel)
      .def_property_readonly(
          "runs", [](const plan::Move& move) { return runs_of(move.runs); },
          "(place in the sender's array, place in the receiver's, count) of each run of numbers.");

  py::class_<plan::Layout>(m, "Layout")
      .def(py::init(&layout_of), "tensor"_a, "shape"_a, "parts"_a,
           "``parts``: (ranks, [(begin, size) of each box], range of the numbers of the boxes or "
           "None).")
      .def_static("whole", &plan::Layout::whole, "tensor"_a, "shape"_a, "ranks"_a)
      .def_property_readonly("tensor", &plan::Layout::tensor)
      .def_property_readonly("shape", &plan::Layout::shape)
      .def_property_readonly("parts", &parts_of)
      .def("numel", py::overload_cast<plan::Rank>(&plan::Layout::numel, py::const_), "rank"_a)
      .def("holders", &plan::Layout::holders, "number"_a)
      .def("answers", &plan::Layout::answers, py::call_guard<py::gil_scoped_release>())
      .def("moves", &plan::Layout::moves, "to"_a, "rank"_a = py::none(),
           py::call_guard<py::gil_scoped_release>())
      .def("to_json", &plan::Layout::to_json)
      .def(
          "__eq__", [](const plan::Layout& a, const plan::Layout& b) { return a == b; }, "other"_a);
}

std::pair<int64_t, int64_t> bounds(plan::RowRange range) { return {range.begin, range.end}; }

std::vector<std::pair<std::vector<uint32_t>, std::vector<plan::Rank>>> buckets_of(
    const plan::Program& program) {
  std::vector<std::pair<std::vector<uint32_t>, std::vector<plan::Rank>>> buckets;
  for (size_t index = 0; index < program.reductions.size(); ++index) {
    const plan::Reduction& reduction = program.reductions[index];
    for (const plan::Bucket& bucket : program.buckets[index]) {
      buckets.push_back({{}, reduction.ranks});
      for (size_t parameter : bucket.parameters) {
        buckets.back().first.push_back(reduction.parameters[parameter].index);
      }
    }
  }
  return buckets;
}

void init_programs(py::module_& m) {
  m.def(
      "of_groups",
      [](plan::Plan plan, const ir::Graph& graph, int places,
         const std::vector<std::string>& factors, double latency_ns, double ns_per_byte,
         bool sequence_parallel) {
        return plan::of_groups(std::move(plan), graph,
                               {places, factors, latency_ns, ns_per_byte, sequence_parallel});
      },
      "plan"_a, "graph"_a, "places"_a, "factors"_a, "latency_ns"_a, "ns_per_byte"_a,
      "sequence_parallel"_a = false, "A plan of groups as one of their ranks.");
  m.def("rows_of_groups", &plan::rows_of_groups, "local_rows"_a, "places"_a);
  py::class_<plan::Transfer>(m, "Transfer")
      .def_property_readonly("value",
                             [](const plan::Transfer& transfer) { return transfer.value.index; })
      .def_readonly("from_stage", &plan::Transfer::from_stage)
      .def_readonly("to_stage", &plan::Transfer::to_stage)
      .def_readonly("micro_batch", &plan::Transfer::micro_batch)
      .def_readonly("from_rank", &plan::Transfer::from)
      .def_readonly("to_rank", &plan::Transfer::to)
      .def_property_readonly("source",
                             [](const plan::Transfer& transfer) { return bounds(transfer.source); })
      .def_property_readonly("target",
                             [](const plan::Transfer& transfer) { return bounds(transfer.target); })
      .def_readonly("whole", &plan::Transfer::whole)
      .def_readonly("weight", &plan::Transfer::weight)
      .def_readonly("grad", &plan::Transfer::grad);

  py::class_<plan::RowRange>(m, "RowRange")
      .def_readonly("begin", &plan::RowRange::begin)
      .def_readonly("end", &plan::RowRange::end);

  py::class_<plan::Program>(m, "Program")
      .def("to_json", [](const plan::Program& program) { return plan::to_json(program); })
      .def("show_order", &plan::show_order)
      .def_property_readonly(
          "schedule", [](const plan::Program& program) { return plan::name(program.schedule); })
      .def_readonly("training", &plan::Program::training)
      .def_property_readonly("stages", &plan::Program::stages)
      .def_property_readonly("ranks", &plan::Program::ranks)
      .def_readonly("stage_ranks", &plan::Program::stage_ranks)
      .def_readonly("shares", &plan::Program::shares)
      .def_readonly("transfers", &plan::Program::transfers)
      .def_property_readonly("reductions",
                             [](const plan::Program& program) { return program.reductions.size(); })
      .def_property_readonly("buckets", &buckets_of,
                             "Values of the graph whose gradients are summed as one array, in its "
                             "order, and the ranks over which they are.")
      .def_property_readonly("micro_batches", [](const plan::Program& program) {
        return program.split.micro_batches;
      });

  py::enum_<plan::Outputs>(m, "Outputs")
      .value("loss", plan::Outputs::loss)
      .value("all", plan::Outputs::all);
  m.def(
      "backward_comes_first",
      [](const plan::Plan& plan) { return plan::backward_comes_first(plan.schedule); }, "plan"_a);
  m.def(
      "loss_of",
      [](const ir::Graph& graph) {
        const auto loss = plan::loss_of(graph);
        return loss ? std::optional(loss->index) : std::nullopt;
      },
      "graph"_a);
  m.def(
      "trained_beside",
      [](const ir::Graph& graph,
         const std::vector<uint32_t>& outputs) -> std::optional<std::pair<uint32_t, std::string>> {
        const auto loss = plan::loss_of(graph);
        std::vector<ir::ValueId> asked(outputs.begin(), outputs.end());
        const auto found = loss ? plan::trained_beside(graph, *loss, asked) : std::nullopt;
        return found ? std::optional(std::pair(found->output.index, found->parameter))
                     : std::nullopt;
      },
      "graph"_a, "outputs"_a,
      "The output that the training loop seems to make the loss of, and a parameter that only it "
      "trains or an empty string; None where there is no loss, or no such output.");
  m.def("can_be_dealt_out", &plan::can_be_dealt_out, "output"_a);
  m.def(
      "lower",
      [](plan::Plan plan, const ir::Graph& graph, const std::vector<int64_t>& local_rows,
         bool training, plan::Outputs outputs, const plan::ParameterHolders& holders,
         std::optional<int64_t> bucket_bytes) {
        if (bucket_bytes) plan.bucket_bytes = bucket_bytes;
        return plan::lower(plan, graph, local_rows, training, outputs, holders);
      },
      "plan"_a, "graph"_a, "local_rows"_a, "training"_a, "outputs"_a = plan::Outputs::loss,
      "holders"_a = plan::ParameterHolders(), "bucket_bytes"_a = py::none(),
      py::call_guard<py::gil_scoped_release>());
  m.def("shard_size", &plan::shard_size, "numbers"_a, "ranks"_a);
  m.def("verify", py::overload_cast<const plan::Program&, const ir::Graph&>(&plan::verify),
        "program"_a, "graph"_a, py::call_guard<py::gil_scoped_release>());
}

void init_simulation(py::module_& m) {
  py::class_<plan::Durations>(m, "Durations")
      .def(py::init([](std::vector<double> forward_ns, std::vector<double> backward_ns,
                       std::vector<std::vector<double>> transfer_ns,
                       std::vector<std::vector<double>> transfer_back_ns,
                       std::vector<double> reduce_ns) {
             return plan::Durations{std::move(forward_ns), std::move(backward_ns),
                                    std::move(transfer_ns), std::move(transfer_back_ns),
                                    std::move(reduce_ns)};
           }),
           py::kw_only(), "forward_ns"_a, "backward_ns"_a, "transfer_ns"_a,
           "transfer_back_ns"_a = std::vector<std::vector<double>>(),
           "reduce_ns"_a = std::vector<double>());

  py::class_<plan::Span>(m, "Span")
      .def_readonly("rank", &plan::Span::rank)
      .def_readonly("action", &plan::Span::action)
      .def_readonly("begin_ns", &plan::Span::begin_ns)
      .def_readonly("end_ns", &plan::Span::end_ns);

  py::class_<plan::Simulation>(m, "Simulation")
      .def_readonly("end_ns", &plan::Simulation::end_ns)
      .def_readonly("spans", &plan::Simulation::spans)
      .def_readonly("peak_in_flight", &plan::Simulation::peak_in_flight);

  m.def("simulate", &plan::simulate, "program"_a, "durations"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("simulate_in_order", &plan::simulate_in_order, "program"_a, "durations"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("foretold_events", &plan::foretold_events, "plan"_a, "program"_a, "begin_ns"_a, "step"_a,
        py::call_guard<py::gil_scoped_release>());
  m.def("timeline", &plan::timeline, "program"_a, py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void init_plan(py::module_& m) {
  init_plans(m);
  init_layouts(m);
  init_programs(m);
  init_simulation(m);
}

}  // namespace rannc::bind
