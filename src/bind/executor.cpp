#include "rannc/runtime/executor.h"

#include <pybind11/stl.h>

#include "bind/layouts.h"
#include "bind/module.h"
#include "bind/objects.h"
#include "rannc/plan/trace.h"
#include "rannc/runtime/collective.h"
#include "rannc/runtime/device_stream.h"
#include "rannc/runtime/join_autograd.h"
#include "rannc/runtime/move_parts.h"

namespace rannc::bind {

using namespace py::literals;
using runtime::Call;
using runtime::Executor;

namespace {

using Tensors = std::vector<at::Tensor>;
using MaybeTensors = std::vector<std::optional<at::Tensor>>;

Tensors from_optional(const MaybeTensors& maybe) {
  Tensors tensors;
  for (const std::optional<at::Tensor>& tensor : maybe) {
    tensors.push_back(tensor.value_or(at::Tensor()));
  }
  return tensors;
}

/// Undefined becomes None by pybind's conversion of an empty optional.
MaybeTensors to_optional(Tensors tensors) {
  MaybeTensors maybe;
  for (at::Tensor& tensor : tensors) {
    maybe.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
  }
  return maybe;
}

std::unique_ptr<Executor> make_executor(
    const ir::Graph& graph, const py::sequence& objects, const plan::Plan& plan,
    std::shared_ptr<comm::Communicator> communicator, const std::string& device,
    plan::Outputs outputs, std::vector<ir::Graph> preludes, bool outside_sum,
    std::shared_ptr<runtime::DrawSteps> draws, std::shared_ptr<runtime::KeptGradients> kept,
    int64_t bucket_bytes, plan::ParameterHolders holders, bool show_values,
    const std::shared_ptr<comm::Stream>& stream, bool float32_sums,
    std::optional<std::vector<std::vector<std::string>>> shards, const HeldParts& held_parts) {
  const ops::Objects held = to_objects(objects);
  const py::gil_scoped_release unlocked;
  return std::make_unique<Executor>(
      graph, held, plan, std::move(communicator), c10::Device(device),
      runtime::Options{outputs, std::move(preludes), outside_sum, std::move(draws),
                       stream ? stream : runtime::device_stream(c10::Device(device)),
                       std::move(kept), bucket_bytes, std::move(holders), std::move(shards),
                       show_values, float32_sums, to_layouts(held_parts)});
}

/// Calls `function`(output_grads, keep_graph, backward), and lets go of it where Python still runs.
runtime::AroundBackward around_backward(py::function function) {
  const std::shared_ptr<py::function> held(new py::function(std::move(function)),
                                           [](py::function* last) {
                                             if (Py_IsInitialized() == 0) return;
                                             const py::gil_scoped_acquire gil;
                                             delete last;
                                           });
  return [held](const Tensors& output_grads, bool keep_graph,
                const std::function<void(bool, int64_t)>& backward) {
    const py::gil_scoped_acquire gil;
    const auto run = [&backward](bool keep, int64_t outputs) {
      const py::gil_scoped_release unlocked;
      backward(keep, outputs);
    };
    (*held)(to_optional(output_grads), keep_graph,
            py::cpp_function(run, "keep_graph"_a = keep_graph, "outputs"_a = int64_t{-1}));
  };
}

}  // namespace

void init_executor(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  m.attr("MOST_OUTPUTS") = runtime::BackwardOf::kMostOutputs;

  py::class_<Call, std::shared_ptr<Call>>(m, "Call")
      .def_property_readonly("outputs",
                             [](const Call& self) { return to_optional(self.outputs()); })
      .def(
          "backward",
          [](Call& self, const MaybeTensors& output_grads, bool keep_graph) {
            return to_optional(self.backward(from_optional(output_grads), keep_graph));
          },
          "output_grads"_a, "keep_graph"_a = false, Unlocked())
      .def_property_readonly("communicates", &Call::communicates);
  m.def(
      "join_autograd",
      [](const std::shared_ptr<Call>& call, const Tensors& leaves,
         const std::vector<bool>& differentiable, py::function around) {
        return to_optional(runtime::join_autograd(call, leaves, differentiable,
                                                  around_backward(std::move(around))));
      },
      "call"_a, "leaves"_a, "differentiable"_a, "around"_a,
      "A call's outputs, as one node of the autograd graph of leaves (parameters, then arguments)."
      " around(output_grads, keep_graph, backward) is called for each backward, and calls "
      "backward(), or backward(keep_graph).");

  py::class_<runtime::KeptGradients, std::shared_ptr<runtime::KeptGradients>>(
      m, "KeptGradients", "Gradients of backward passes whose sum over the replicas is put off.")
      .def(py::init([](const std::string& device, bool float32_sums) {
             return runtime::KeptGradients(runtime::device_stream(c10::Device(device)),
                                           float32_sums);
           }),
           "device"_a = "cpu", "float32_sums"_a = false)
      .def_property_readonly("passes", &runtime::KeptGradients::passes)
      .def_property_readonly("lost", &runtime::KeptGradients::lost)
      .def("sum", &runtime::KeptGradients::sum, "communicator"_a, Unlocked())
      .def("drop", &runtime::KeptGradients::drop, Unlocked());

  m.def(
      "staged",
      [](std::shared_ptr<comm::Communicator> host, const std::string& device,
         int64_t pinned_bytes) {
        return runtime::staged(std::move(host), c10::Device(device), pinned_bytes);
      },
      "host"_a, "device"_a, "pinned_bytes"_a = int64_t{256} << 20,
      "A communicator that sends and sums memory of the device over the host's, through pinned "
      "memory; for the CPU the host's itself.");

  m.def(
      "nccl",
      [](std::shared_ptr<comm::Communicator> host, const std::string& device,
         const std::string& library, bool one_stream, bool order_each) {
        // Its end waits for the device, and where ranks are threads, for others that want the GIL.
        auto made =
            runtime::nccl(std::move(host), c10::Device(device), library, one_stream, order_each);
        auto* const communicator = made.get();
        const auto end = [made = std::move(made)](comm::Communicator*) mutable {
          if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return made.reset();
          const py::gil_scoped_release unlocked;
          made.reset();
        };
        return std::shared_ptr<comm::Communicator>(communicator, end);
      },
      "host"_a, "device"_a, "library"_a = "", "one_stream"_a = false, "order_each"_a = false,
      "A communicator that sends and sums memory of the device by NCCL, and does all else over the "
      "host's. Collective.",
      Unlocked());

  m.def(
      "reconnect_nccl",
      [](comm::Communicator& communicator, const std::string& device) {
        runtime::reconnect_nccl(communicator, c10::Device(device));
      },
      "communicator"_a, "device"_a,
      "Ends NCCL's communicators, and connects new ones for the same traffic. Collective.",
      Unlocked());

  m.def(
      "measure_links",
      [](comm::Communicator& comm, const std::string& device) {
        return runtime::measure_links(comm, c10::Device(device));
      },
      "comm"_a, "device"_a, Unlocked(),
      "As comm.measure_links(), from and to memory of the device.");
  // Flat tensors over ranks: of what a step does beside a Program, and of tests.
  const auto flat = [&m](const char* name, runtime::Collective kind, const char* text) {
    m.def(
        name,
        [kind](const at::Tensor& tensor, comm::Communicator& comm, comm::Stream& stream,
               const std::vector<int>& ranks) {
          return runtime::start(kind, tensor, comm, stream, ranks, {.what = "flat tensor"});
        },
        "tensor"_a, "comm"_a, "stream"_a, "ranks"_a, Unlocked(), text);
  };
  flat("start_sum", runtime::Collective::sum,
       "Sums a contiguous tensor over ranks, in place. The result is there after stream.wait() of "
       "what is returned.");
  flat("start_reduce_scatter", runtime::Collective::reduce_scatter,
       "The same, but only this rank's shard of the sum comes to it: tensor falls into as many "
       "equal shards as there are ranks.");
  flat("start_all_gather", runtime::Collective::all_gather,
       "This rank's shard of a contiguous tensor comes to all ranks, and theirs to it.");
  using Moved =
      std::tuple<plan::Layout, plan::Layout, std::optional<at::Tensor>, std::optional<at::Tensor>>;
  m.def(
      "move_parts",
      [](comm::Communicator& comm, const std::vector<Moved>& tensors,
         const std::vector<int>& ranks) {
        std::vector<runtime::MovedTensor> moved;
        for (const auto& [from, to, held, wanted] : tensors) {
          moved.push_back({from, to, held.value_or(at::Tensor()), wanted.value_or(at::Tensor())});
        }
        runtime::move_parts(comm, moved, ranks, {.what = "parts of tensors"});
      },
      "comm"_a, "tensors"_a, "ranks"_a, Unlocked(),
      "tensors: (layout that is, layout that shall be, this rank's part of the one, memory for its "
      "part of the other) of each, flat and on the host. ranks: all of them call it.");
  m.def(
      "connect_shards",
      [](comm::Communicator& comm, const std::string& device, const std::vector<int>& ranks,
         const std::vector<int64_t>& bytes) {
        const c10::Device on(device);
        runtime::connect({.messages = {}, .sums = {{ranks, {}, bytes}}}, comm,
                         *runtime::device_stream(on), on);
      },
      "comm"_a, "device"_a, "ranks"_a, "bytes"_a, Unlocked(),
      "Connects the ranks for flat tensors of these sizes, where that has to be done before. Every "
      "rank of the communicator calls it.");
  m.def(
      "device_stream",
      [](const std::string& device) { return runtime::device_stream(c10::Device(device)); },
      "device"_a, "The order of the device's work: that of the stream which is current.");

  py::class_<runtime::DrawSteps, std::shared_ptr<runtime::DrawSteps>>(
      m, "DrawSteps", "What deterministic random numbers are told from, beside node and sample.")
      .def(py::init([](uint64_t seed) {
             return runtime::DrawSteps{seed, 0};
           }),
           "seed"_a)
      .def_readwrite("seed", &runtime::DrawSteps::seed)
      .def_readwrite("step", &runtime::DrawSteps::step);

  py::class_<runtime::Span>(m, "Span")
      .def_readonly("action", &runtime::Span::action)
      .def_readonly("begin_ns", &runtime::Span::begin_ns)
      .def_readonly("end_ns", &runtime::Span::end_ns)
      .def_readonly("cpu_ns", &runtime::Span::cpu_ns);
  py::class_<runtime::Times>(m, "Times")
      .def_readonly("compute_ns", &runtime::Times::compute_ns)
      .def_readonly("send_ns", &runtime::Times::send_ns)
      .def_readonly("receive_ns", &runtime::Times::receive_ns)
      .def_readonly("reduce_ns", &runtime::Times::reduce_ns)
      .def_readonly("idle_ns", &runtime::Times::idle_ns);

  m.def(
      "trace_events",
      [](const plan::Program& program, plan::Rank rank, const std::vector<runtime::Span>& spans,
         int64_t step, int64_t earlier_ns) {
        std::vector<plan::TimedAction> actions;
        for (const runtime::Span& span : spans) {
          actions.push_back({span.action, span.begin_ns - earlier_ns, span.end_ns - earlier_ns});
        }
        return plan::trace_events(program, rank, actions, step);
      },
      "program"_a, "rank"_a, "timeline"_a, "step"_a, "earlier_ns"_a,
      "Events of a timeline, on a clock that shows earlier_ns less than this host's.", Unlocked());

  py::class_<Executor>(m, "Executor")
      .def(py::init(&make_executor), "graph"_a, "objects"_a, "plan"_a, "communicator"_a,
           "device"_a = "cpu", "outputs"_a = plan::Outputs::loss,
           "preludes"_a = std::vector<ir::Graph>(), "outside_sum"_a = false, "draws"_a = py::none(),
           "kept"_a = py::none(), "bucket_bytes"_a = plan::kBucketBytes,
           "holders"_a = plan::ParameterHolders(), "show_values"_a = false, "stream"_a = py::none(),
           "float32_sums"_a = false, "shards"_a = py::none(), "held"_a = HeldParts())
      .def_property_readonly("parameter_names", &Executor::parameter_names)
      .def_property_readonly("buffer_names", &Executor::buffer_names)
      .def_property_readonly("parts", &Executor::parts,
                             "Of its parameters and buffers, those that it takes a part of.")
      .def("forward", &Executor::forward, "inputs"_a, "parameters"_a, "buffers"_a, "local_rows"_a,
           "with_backward"_a = true, "no_sync"_a = false, "loss_seed"_a = 1.0, Unlocked())
      // They wait for an accelerator, whose threads may want the interpreter meanwhile.
      .def_property_readonly("times",
                             [](const Executor& self) {
                               const py::gil_scoped_release unlocked;
                               return self.times();
                             })
      .def_property_readonly("timeline", [](const Executor& self) {
        const py::gil_scoped_release unlocked;
        return self.timeline();
      });
}

}  // namespace rannc::bind
