#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "frontend/recording.h"
#include "rannc/frontend/capture.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/rows.h"
#include "rannc/util/error.h"

namespace rannc::frontend {
namespace {

constexpr const char* kChangesByItself =
    "What differs from call to call, as the next number of random.Random or of an iterator, is "
    "better an argument of forward().";

/// All integers below are floats of 64 bits, too.
constexpr double kExactReals = 9007199254740992.0;

/// Where an integer stands, for the error that it may cause.
struct Site {
  const ir::Node* node;
  std::string what;  ///< "the size of dimension 1 of its result"
};

/// Compares the traces place by place and writes what depends on the rows into the first.
class Joiner {
 public:
  explicit Joiner(const std::vector<Trace>& traces) : traces_(traces) {}

  Capture run() {
    RANNC_CHECK(traces_.size() >= 2 && traces_[0].rows != traces_[1].rows,
                "traces at two different numbers of rows are needed");
    for (const Trace& trace : traces_) {
      if (&trace != &traces_[0]) check_structure(trace);
    }
    Capture joined = traces_[0].capture;
    for (size_t i = 0; i < joined.graph.nodes.size(); ++i) join_node(joined, i);
    for (size_t i = 0; i < joined.graph.values.size(); ++i) join_value(joined.graph, i);
    return joined;
  }

 private:
  [[noreturn]] static void fail(const ir::Node* node, const std::string& message) {
    throw TraceError(node == nullptr ? message
                                     : c10::str(place(node->module, node->source), ": ", message));
  }

  std::string rows_text() const {
    std::vector<std::string> parts;
    for (const Trace& trace : traces_) parts.push_back(std::to_string(trace.rows));
    return c10::Join(", ", parts);
  }

  static std::string describe(const ir::Graph& graph, size_t index) {
    if (index >= graph.nodes.size()) return "nothing";
    const ir::Node& node = graph.nodes[index];
    return c10::str(node.op, " in ", place(node.module, node.source));
  }

  void check_structure(const Trace& other) const {
    const ir::Graph& first = traces_[0].capture.graph;
    const ir::Graph& second = other.capture.graph;
    const size_t count = std::max(first.nodes.size(), second.nodes.size());
    for (size_t i = 0; i < count; ++i) {
      if (i < first.nodes.size() && i < second.nodes.size() &&
          same(first.nodes[i], second.nodes[i])) {
        continue;
      }
      throw TraceError(
          c10::str("the model calls other operators when the number of rows differs: "
                   "operator ",
                   i, " is ", describe(first, i), " at ", traces_[0].rows, " rows, but ",
                   describe(second, i), " at ", other.rows,
                   ".\n  Python control flow must not depend on the batch size."));
    }
    RANNC_CHECK(first.values.size() == second.values.size() && first.outputs == second.outputs &&
                    first.inputs == second.inputs,
                "equal nodes, but other values");
    if (traces_[0].capture.objects.size() != other.capture.objects.size()) {
      throw TraceError("the model makes other constants when the number of rows differs");
    }
  }

  /// Equal but for their names, and for numbers that may depend on the rows.
  static bool same(const ir::Node& a, const ir::Node& b) {
    if (a.kind != b.kind || a.op != b.op || a.outputs != b.outputs || a.writes != b.writes ||
        a.grad_enabled != b.grad_enabled || a.inputs.size() != b.inputs.size()) {
      return false;
    }
    for (size_t i = 0; i < a.inputs.size(); ++i) {
      if (!same(a.inputs[i], b.inputs[i])) return false;
    }
    return true;
  }

  static bool same(const ir::Argument& a, const ir::Argument& b) {
    if (a.index() != b.index()) return false;
    if (std::holds_alternative<ir::AffineInt>(a) || std::holds_alternative<double>(a)) return true;
    if (const auto* list = std::get_if<std::vector<ir::AffineInt>>(&a)) {
      return list->size() == std::get<std::vector<ir::AffineInt>>(b).size();
    }
    return a == b;
  }

  template <class Get>
  ir::AffineInt fit(const Get& get, const Site& site) const {
    const int64_t rows = traces_[0].rows;
    const int64_t value = get(traces_[0]);
    const int64_t step = get(traces_[1]) - value;
    const int64_t row_step = traces_[1].rows - rows;
    ir::AffineInt fitted{value, 0};
    bool exact = step % row_step == 0;
    if (exact) {
      fitted.per_row = step / row_step;
      fitted.fixed = value - fitted.per_row * rows;
      exact = std::ranges::all_of(
          traces_, [&](const Trace& trace) { return get(trace) == fitted.at(trace.rows); });
    }
    if (exact) return fitted;
    std::vector<std::string> seen;
    for (const Trace& trace : traces_) seen.push_back(std::to_string(get(trace)));
    fail(site.node, c10::str(site.what, " is ", c10::Join(", ", seen), " at ", rows_text(),
                             " rows, which is not of the form a + b * rows.\n  Sizes may only grow "
                             "linearly with the batch. ",
                             kChangesByItself));
  }

  void join_node(Capture& joined, size_t index) const {
    ir::Node& node = joined.graph.nodes[index];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto argument = [&, i](const Trace& trace) -> const ir::Argument& {
        return trace.capture.graph.nodes[index].inputs[i];
      };
      const Site site{&node, c10::str("an integer argument of ", node.op)};
      if (auto* number = std::get_if<ir::AffineInt>(&node.inputs[i])) {
        *number =
            fit([&](const Trace& t) { return std::get<ir::AffineInt>(argument(t)).fixed; }, site);
      } else if (auto* list = std::get_if<std::vector<ir::AffineInt>>(&node.inputs[i])) {
        for (size_t k = 0; k < list->size(); ++k) {
          (*list)[k] = fit(
              [&](const Trace& t) {
                return std::get<std::vector<ir::AffineInt>>(argument(t))[k].fixed;
              },
              site);
        }
      } else if (std::holds_alternative<double>(node.inputs[i])) {
        if (auto number = join_real(joined.graph, node, argument)) node.inputs[i] = *number;
      }
    }
    if (node.object.valid()) check_object(joined, node.object, &node);
  }

  /// The integer that a float of the batch size stands for; nullopt when the float is a constant.
  template <class Get>
  std::optional<ir::AffineInt> join_real(const ir::Graph& graph, const ir::Node& node,
                                         const Get& argument) const {
    const auto real = [&](const Trace& trace) { return std::get<double>(argument(trace)); };
    const double first = real(traces_[0]);
    const bool is_constant = std::ranges::all_of(traces_, [&](const Trace& trace) {
      const double other = real(trace);
      return std::memcmp(&other, &first, sizeof first) == 0;  // NaN equals itself here
    });
    if (is_constant) return std::nullopt;
    const bool is_whole = std::ranges::all_of(traces_, [&](const Trace& trace) {
      return std::trunc(real(trace)) == real(trace) && std::abs(real(trace)) < kExactReals;
    });
    if (is_whole && computes_in_floats(graph, node)) {
      return fit([&](const Trace& trace) { return static_cast<int64_t>(real(trace)); },
                 {&node, c10::str("a Python float given to ", node.op)});
    }
    std::vector<std::string> seen;
    for (const Trace& trace : traces_) seen.push_back(c10::str(real(trace)));
    fail(&node, c10::str("a Python float given to ", node.op,
                         " depends on the batch size or on chance: ", c10::Join(", ", seen), " at ",
                         rows_text(),
                         " rows.\n  Compute with the integer size on tensors instead: "
                         "`x / x.size(0)` rather than `x * (1.0 / x.size(0))`. ",
                         kChangesByItself));
  }

  /// Whether the result is the same for an integer and for a float of the same value: integers
  /// times a float are floats.
  static bool computes_in_floats(const ir::Graph& graph, const ir::Node& node) {
    if (node.op == "aten::div.Tensor") return true;
    return std::ranges::any_of(node.inputs, [&](const ir::Argument& argument) {
      const auto* value = std::get_if<ir::ValueId>(&argument);
      return value != nullptr && ir::is_floating(graph[*value].dtype);
    });
  }

  void check_object(const Capture& joined, ir::ObjectId id, const ir::Node* node) const {
    const c10::IValue& first = joined.objects[id.index];
    for (const Trace& trace : traces_) {
      if (equal_objects(first, trace.capture.objects[id.index])) continue;
      fail(node, node != nullptr
                     ? c10::str("a non-tensor argument of ", node->op, " depends on the batch size")
                     : "depends on the batch size");
    }
  }

  static bool equal_objects(const c10::IValue& a, const c10::IValue& b) {
    if (a.isTensor() != b.isTensor()) return false;
    if (a.isTensor()) return equal_tensors(a.toTensor(), b.toTensor());
    const PyGILState_STATE gil = PyGILState_Ensure();
    const int equal = PyObject_RichCompareBool(a.toPyObject(), b.toPyObject(), Py_EQ);
    if (equal < 0) PyErr_Clear();
    PyGILState_Release(gil);
    return equal == 1;
  }

  static bool equal_tensors(const at::Tensor& a, const at::Tensor& b) {
    if (a.is_same(b)) return true;
    if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
    const at::Tensor left = a.detach().cpu().contiguous();
    const at::Tensor right = b.detach().cpu().contiguous();
    // Bytes: a NaN in a constant equals itself.
    return left.nbytes() == 0 ||
           std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
  }

  void join_value(ir::Graph& graph, size_t index) const {
    ir::Value& value = graph.values[index];
    const ir::Node* node = value.producer.valid() ? &graph.nodes[value.producer.index] : nullptr;
    for (const Trace& trace : traces_) {
      const ir::Value& other = trace.capture.graph.values[index];
      if (value.kind == ir::ValueKind::constant && other.dims != value.dims) break;
      if (value.dims.size() != other.dims.size() || value.dtype != other.dtype ||
          value.requires_grad != other.requires_grad || value.on_host != other.on_host ||
          value.storage != other.storage) {
        fail(node, c10::str("'", value.name,
                            "' has other dimensions, another dtype or device, or "
                            "shares memory with another tensor when the number of rows differs"));
      }
    }
    if (value.kind == ir::ValueKind::constant) {
      check_constant(graph, {static_cast<uint32_t>(index)});
      return;
    }
    for (size_t d = 0; d < value.dims.size(); ++d) {
      const Site site{node, c10::str("the size of dimension ", d, " of '", value.name, "'")};
      value.dims[d] =
          fit([&](const Trace& trace) { return trace.capture.graph.values[index].dims[d].fixed; },
              site);
      if (value.dims[d].per_row < 0) fail_falling(value.dims[d], site);
    }
  }

  /// Of a size that is negative for a large batch, which a graph would have to be right for.
  [[noreturn]] void fail_falling(const ir::AffineInt& size, const Site& site) const {
    std::vector<int64_t> seen;
    for (const Trace& trace : traces_) seen.push_back(size.at(trace.rows));
    fail(
        site.node,
        c10::str(site.what, " is ", c10::Join(", ", seen), " at ", rows_text(),
                 " rows, and would be negative at ", size.fixed / -size.per_row + 1,
                 ".\n  Sizes may not fall as the batch grows. A queue of examples can be written "
                 "with index_copy_() at (pointer + torch.arange(rows)) % length, and read whole."));
  }

  void check_constant(const ir::Graph& graph, ir::ValueId id) const {
    const ir::ObjectId object = graph[id].object;
    for (const Trace& trace : traces_) {
      if (equal_objects(traces_[0].capture.objects[object.index],
                        trace.capture.objects[object.index])) {
        continue;
      }
      const auto users = graph.users()[id.index];
      fail(users.empty() ? nullptr : &graph[users.front()],
           c10::str("the constant tensor '", graph[id].name,
                    "' depends on the batch size or changes "
                    "from call to call; build it with torch operators from sizes instead "
                    "(torch.arange, torch.full, x.new_zeros)"));
    }
  }

  const std::vector<Trace>& traces_;
};

}  // namespace

Capture join(const std::vector<Trace>& traces) {
  // What has no effect may differ: layers that are made in the first call only.
  std::vector<Trace> live = traces;
  for (Trace& trace : live) trace.capture.graph = ir::drop_dead_nodes(trace.capture.graph);
  Capture joined = Joiner(live).run();
  joined.graph = ir::infer_rows(joined.graph);
  ir::verify(joined.graph);
  return joined;
}

}  // namespace rannc::frontend
