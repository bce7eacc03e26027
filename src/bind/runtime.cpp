#include <pybind11/stl.h>

#include "bind/module.h"
#include "bind/objects.h"
#include "rannc/ops/backend.h"
#include "rannc/ops/host_blocks.h"
#include "rannc/ops/memory.h"
#include "rannc/runtime/interpreter.h"

namespace rannc::bind {

using namespace py::literals;
using ops::MemoryRecorder;
using runtime::Interpreter;

namespace {

std::unique_ptr<Interpreter> make_interpreter(const ir::Graph& graph, const py::sequence& objects,
                                              const std::string& device) {
  return std::make_unique<Interpreter>(graph, to_objects(objects), c10::Device(device));
}

/// Counts from __enter__ to __exit__; the counts stay readable afterwards.
struct Recording {
  std::optional<c10::Device> device;
  std::unique_ptr<MemoryRecorder> recorder;
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;

  void stop() {
    current_bytes = recorder->current_bytes();
    peak_bytes = recorder->peak_bytes();
    recorder.reset();
  }
};

void init_backend(py::module_& m) {
  py::class_<ops::Backend>(m, "Backend", "What the backend of an accelerator offers.")
      .def_readonly("events", &ops::Backend::events)
      .def_readonly("timed_events", &ops::Backend::timed_events)
      .def_readonly("generator", &ops::Backend::generator);
  m.def(
      "backend_of", [](const std::string& device) { return ops::backend_of(c10::Device(device)); },
      "device"_a, py::call_guard<py::gil_scoped_release>(),
      "Tried once for each kind of device; what is lacking is logged then.");
  m.def(
      "wait_for", [](const std::string& device) { ops::wait_for(c10::Device(device)); }, "device"_a,
      py::call_guard<py::gil_scoped_release>(), "Until the device has done what it was given.");
  m.def(
      "random_state",
      [](const std::string& device) -> std::optional<at::Tensor> {
        std::optional<at::Generator> generator = ops::generator_of(c10::Device(device));
        if (!generator) return {};
        const std::lock_guard lock(generator->mutex());
        return generator->get_state();
      },
      "device"_a, "Of its default generator; None where its backend has none.");
  m.def(
      "set_random_state",
      [](const std::string& device, const at::Tensor& state) {
        at::Generator generator = ops::generator_of(c10::Device(device)).value();
        const std::lock_guard lock(generator.mutex());
        generator.set_state(state);
      },
      "device"_a, "state"_a);
  m.def(
      "seed_generator",
      [](const std::string& device, uint64_t seed) {
        std::optional<at::Generator> generator = ops::generator_of(c10::Device(device));
        if (!generator) return;
        const std::lock_guard lock(generator->mutex());
        generator->set_current_seed(seed);
      },
      "device"_a, "seed"_a, "As torch.manual_seed() of its default generator, if it has one.");
}

}  // namespace

void init_runtime(py::module_& m) {
  py::class_<Interpreter>(m, "Interpreter")
      .def(py::init(&make_interpreter), "graph"_a, "objects"_a, "device"_a = "cpu")
      .def("state_names", &Interpreter::state_names)
      .def(
          "run",
          [](Interpreter& self, std::vector<at::Tensor> inputs,
             const std::vector<at::Tensor>& state,
             int64_t rows) { return self.run(std::move(inputs), state, rows); },
          "inputs"_a, "state"_a, "rows"_a, py::call_guard<py::gil_scoped_release>())
      .def(
          "run_row_free_effects",
          [](Interpreter& self, const std::vector<at::Tensor>& state) {
            self.run_row_free_effects({}, state);
          },
          "state"_a, py::call_guard<py::gil_scoped_release>());

  py::class_<Recording>(m, "MemoryRecorder")
      .def(py::init([](const std::optional<std::string>& device) {
             Recording recording;
             if (device) recording.device = c10::Device(*device);
             return recording;
           }),
           "device"_a = py::none(), "Of one device, or of all memory.")
      .def("__enter__",
           [](Recording& self) -> Recording& {
             self.recorder = std::make_unique<MemoryRecorder>(self.device);
             return self;
           })
      .def("__exit__", [](Recording& self, const py::args&) { self.stop(); })
      .def("reset_peak", [](Recording& self) { self.recorder->reset_peak(); })
      .def_property_readonly("current_bytes",
                             [](const Recording& self) {
                               return self.recorder ? self.recorder->current_bytes()
                                                    : self.current_bytes;
                             })
      .def_property_readonly("peak_bytes", [](const Recording& self) {
        return self.recorder ? self.recorder->peak_bytes() : self.peak_bytes;
      });

  m.def(
      "reuse_freed_blocks", &ops::reuse_freed_blocks,
      "Torch's tensors on the host take blocks that malloc can reuse exactly; False where somebody "
      "else has set the allocator.");

  init_backend(m);
  init_executor(m);
}

}  // namespace rannc::bind
