#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cost/operator_class.h"
#include "rannc/cost/device_bytes.h"
#include "rannc/cost/device_model.h"
#include "rannc/util/error.h"

namespace rannc::cost {
namespace {

using ir::Value;
using ir::ValueId;

int64_t all_bytes(const Value& value, int64_t rows) { return value.bytes(rows); }

/// One node at one number of rows.
class Roofline {
 public:
  Roofline(const ir::Graph& graph, const ir::Node& node, const std::vector<ValueId>& operands,
           const DeviceModel& device, const OperatorClass& kind, int64_t rows)
      : graph_(graph),
        node_(node),
        operands_(operands),
        device_(device),
        kind_(kind),
        rows_(rows) {}

  [[nodiscard]] NodeCost cost() const {
    NodeCost cost;
    if (kind_.work == Work::view || is_view()) return cost;
    const double flops = this->flops();
    if (kind_.work != Work::part) {
      const double bytes = kind_.work == Work::gather ? 2 * result_bytes() : traffic_bytes();
      cost.forward_ns = rounded(kernel_ns(flops, bytes * kind_.forward_passes));
    }
    if (!has_backward()) return cost;
    cost.backward_ns = rounded(backward_ns(flops));
    cost.workspace_bytes = static_cast<int64_t>(gradient_bytes(device_bytes));
    return cost;
  }

  [[nodiscard]] MatrixWork training_work() const {
    const double forward = flops();
    if (forward == 0) return {};
    double products = 1;
    if (has_backward()) products += kind_.work == Work::attention ? 2 : differentiable_matrices();
    return {products * forward, products * forward / peak().flops_per_s};
  }

  /// Something that requires a gradient comes out, while gradients are recorded.
  [[nodiscard]] bool has_backward() const {
    return node_.grad_enabled && std::ranges::any_of(node_.outputs, [&](ValueId output) {
             return output.valid() && graph_[output].requires_grad;
           });
  }

 private:
  [[nodiscard]] double bytes(ValueId id) const {
    return id.valid() ? static_cast<double>(graph_[id].bytes(rows_)) : 0;
  }
  [[nodiscard]] double count(ValueId id) const {
    double product = 1;
    for (const ir::AffineInt& dim : graph_[id].dims) product *= static_cast<double>(dim.at(rows_));
    return product;
  }
  /// Dimension `index`, from the back when negative; 1 when there is none.
  [[nodiscard]] double dim(ValueId id, int index) const {
    const auto& dims = graph_[id].dims;
    const int at = index < 0 ? index + static_cast<int>(dims.size()) : index;
    if (at < 0 || at >= static_cast<int>(dims.size())) return 1;
    return static_cast<double>(dims[static_cast<size_t>(at)].at(rows_));
  }
  [[nodiscard]] double result_bytes() const {
    double sum = 0;
    for (ValueId output : node_.outputs) sum += bytes(output);
    return sum;
  }
  [[nodiscard]] double traffic_bytes() const {
    double sum = result_bytes();
    for (ValueId operand : operands_) sum += bytes(operand);
    return sum;
  }
  /// Gradients of results that come in and of operands that go out.
  [[nodiscard]] double gradient_bytes(int64_t (*bytes_of)(const Value& value,
                                                          int64_t rows) = all_bytes) const {
    double sum = 0;
    const auto add = [&](ValueId id) {
      if (!id.valid() || !graph_[id].requires_grad) return;
      sum += static_cast<double>(bytes_of(graph_[id], rows_));
    };
    std::ranges::for_each(node_.outputs, add);
    std::ranges::for_each(operands_, add);
    return sum;
  }

  [[nodiscard]] double result_count() const {
    return node_.outputs.empty() || !node_.outputs[0].valid() ? 0 : count(node_.outputs[0]);
  }

  /// Whether no kernel runs: reshape() of a contiguous tensor, to() of the same type.
  [[nodiscard]] bool is_view() const {
    if (!node_.writes.empty() || node_.outputs.empty() || kind_.work != Work::pointwise) {
      return false;
    }
    return std::ranges::all_of(node_.outputs, [&](ValueId output) {
      return output.valid() && graph_[output].storage != output &&
             std::ranges::any_of(operands_, [&](ValueId operand) {
               return graph_[operand].storage == graph_[output].storage;
             });
    });
  }

  [[nodiscard]] double backward_ns(double flops) const {
    if (kind_.work == Work::gather) {
      // The gradient of the whole table is written, the part that was read is added to.
      const double table = operands_.empty() ? 0 : bytes(operands_[0]);
      return kernel_ns(0, result_bytes() + 2 * table);
    }
    if (flops == 0) {
      return kernel_ns(0, (gradient_bytes() + saved_bytes()) * kind_.backward_passes);
    }
    if (kind_.work == Work::attention) {
      // Five products instead of two: probabilities are computed again (Dao et al., 2022).
      return kernel_ns(2.5 * flops, gradient_bytes() + traffic_bytes());
    }
    // One product of the same size per matrix whose gradient is wanted; the bias takes a sum.
    double ns = differentiable_matrices() * kernel_ns(flops, traffic_bytes());
    const bool biased = kind_.work == Work::linear || kind_.work == Work::convolution ||
                        kind_.work == Work::transposed_convolution;
    if (biased && operands_.size() > 2 && graph_[operands_[2]].requires_grad) {
      ns += launched(memory_ns(result_bytes(), device_.memory.reduction));
    }
    return ns;
  }

  /// What the backward reads of what the forward left, whoever else keeps it.
  [[nodiscard]] double saved_bytes() const {
    double sum = 0;
    if (kind_.saves == Saves::operands || kind_.saves == Saves::all) {
      for (ValueId operand : operands_) sum += bytes(operand);
    }
    if (kind_.saves == Saves::first_operand && !operands_.empty()) sum += bytes(operands_[0]);
    if (kind_.saves == Saves::results || kind_.saves == Saves::all) sum += result_bytes();
    if (kind_.saves == Saves::mask) sum += result_count();
    return sum;
  }

  [[nodiscard]] double flops() const {
    const Work work = kind_.work;
    if (work == Work::pointwise || work == Work::reduction || work == Work::part ||
        work == Work::gather || operands_.size() < 2) {
      return 0;
    }
    const ValueId first = operands_[0], second = operands_[1];
    switch (work) {
      case Work::matmul:
        // addmm, baddbmm and addbmm take the bias first.
        return 2 * result_count() * dim(operands_.size() > 2 ? second : first, -1);
      case Work::grouped_matmul:
        return 2 * result_count() * dim(first, -1);
      case Work::linear:
        return 2 * count(first) * dim(second, 0);
      case Work::convolution:
        return 2 * result_count() * count(second) / std::max(1.0, dim(second, 0));
      case Work::transposed_convolution:
        return 2 * count(first) * count(second) / std::max(1.0, dim(second, 0));
      case Work::einsum:
        // Exact for one matrix product: sqrt(MK * KN * MN) = MNK; a fair guess with batch labels.
        return 2 * std::sqrt(count(first) * count(second) * result_count());
      case Work::attention: {
        const double queries = count(first) / std::max(1.0, dim(first, -1));
        const double values = operands_.size() > 2 ? dim(operands_[2], -1) : dim(second, -1);
        const double all = 2 * queries * dim(second, -2) * (dim(first, -1) + values);
        return is_causal() ? all / 2 : all;
      }
      case Work::recurrent: {
        const double steps = count(first) / std::max(1.0, dim(first, -1));
        double weights = 0;
        for (ValueId operand : operands_) {
          const Value& value = graph_[operand];
          if (value.dims.size() == 2 && value.kind == ir::ValueKind::parameter) {
            weights += count(operand);
          }
        }
        return 2 * steps * weights;
      }
      default:
        return 0;
    }
  }

  /// 1 or 2 of the two factors need a gradient; operands that are added need no product.
  [[nodiscard]] double differentiable_matrices() const {
    const auto wanted = std::ranges::count_if(operands_, [&](ValueId operand) {
      return graph_[operand].requires_grad && graph_[operand].dims.size() >= 2;
    });
    return std::clamp(static_cast<double>(wanted), 1.0, 2.0);
  }

  /// The argument `is_causal` of scaled_dot_product_attention: its first boolean.
  [[nodiscard]] bool is_causal() const {
    for (const ir::Argument& argument : node_.inputs) {
      if (const bool* flag = std::get_if<bool>(&argument)) return *flag;
    }
    return false;
  }

  [[nodiscard]] ir::DType dtype() const {
    const ValueId id = operands_.empty() ? ValueId{} : operands_[0];
    return id.valid() ? graph_[id].dtype : ir::DType::float32;
  }
  [[nodiscard]] const MatrixRate& peak() const {
    switch (dtype()) {
      case ir::DType::float16:
        return device_.float16;
      case ir::DType::bfloat16:
        return device_.bfloat16;
      case ir::DType::float64:
        return device_.float64;
      default:
        return device_.float32;
    }
  }

  [[nodiscard]] double flops_per_s() const {
    const MatrixRate& rate = peak();
    switch (kind_.work) {
      case Work::convolution:
      case Work::transposed_convolution: {
        const bool tf32 = dtype() == ir::DType::float32 && device_.tf32_flops_per_s > 0;
        return rate.convolution * (tf32 ? device_.tf32_flops_per_s : rate.flops_per_s);
      }
      case Work::attention:
        return rate.attention * rate.flops_per_s;
      case Work::recurrent:
        return rate.recurrent * rate.flops_per_s;
      default:
        return rate.matmul * (is_aligned() ? 1 : rate.unaligned) * rate.flops_per_s;
    }
  }
  /// Whether tensor cores can read the first operand and the result by pieces of 8 numbers.
  [[nodiscard]] bool is_aligned() const {
    const auto aligned = [&](ValueId id) {
      return !id.valid() || static_cast<int64_t>(dim(id, -1)) % 8 == 0;
    };
    return (operands_.empty() || aligned(operands_[0])) &&
           (node_.outputs.empty() || aligned(node_.outputs[0]));
  }

  [[nodiscard]] double memory_share() const {
    if (kind_.work == Work::gather) return device_.memory.gather;
    if (kind_.work == Work::reduction) {
      const bool slow = device_.memory.batch_norm > 0 && node_.op.ends_with("batch_norm") &&
                        ir::size_bytes(dtype()) == 2;
      return slow ? device_.memory.batch_norm : device_.memory.reduction;
    }
    return device_.memory.pointwise;
  }

  [[nodiscard]] double memory_ns(double bytes, double share) const {
    return bytes / (device_.memory.bytes_per_s * share) * 1e9;
  }
  /// Of a kernel that works for `ns`: its launch hides behind the kernels before it, as long as the
  /// program is ahead of the device.
  [[nodiscard]] double launched(double ns) const {
    return std::max(ns + device_.kernel_ns, device_.call_ns);
  }
  [[nodiscard]] double kernel_ns(double flops, double bytes) const {
    const double compute = flops > 0 ? flops / flops_per_s() * 1e9 : 0;
    return launched(std::max(compute, memory_ns(bytes, memory_share())));
  }
  static int64_t rounded(double ns) { return static_cast<int64_t>(std::llround(ns)); }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const std::vector<ValueId>& operands_;
  const DeviceModel& device_;
  const OperatorClass& kind_;
  int64_t rows_;
};

/// Which storages autograd keeps, each charged to the first node that saves it.
class SavedStorages {
 public:
  explicit SavedStorages(const ir::Graph& graph) : graph_(graph), taken_(graph.values.size()) {}

  /// Values whose bytes `node` is charged for. A `mask` is one byte per result, and not a value.
  std::vector<ValueId> take(const ir::Node& node, const std::vector<ValueId>& operands,
                            Saves saves) {
    std::vector<ValueId> found;
    const auto keep = [&](ValueId id) {
      if (!id.valid()) return;
      const Value& value = graph_[id];
      const Value& owner = graph_[value.storage];
      const bool state = owner.kind == ir::ValueKind::parameter ||
                         owner.kind == ir::ValueKind::buffer ||
                         owner.kind == ir::ValueKind::constant;
      if (state || taken_[value.storage.index]) return;
      taken_[value.storage.index] = true;
      found.push_back(value.storage);
    };
    if (saves == Saves::operands || saves == Saves::all) std::ranges::for_each(operands, keep);
    if (saves == Saves::first_operand && !operands.empty()) keep(operands[0]);
    if (saves == Saves::results || saves == Saves::all) std::ranges::for_each(node.outputs, keep);
    if (saves == Saves::integers) {
      for (ValueId operand : operands) {
        if (!ir::is_floating(graph_[operand].dtype)) keep(operand);
      }
    }
    return found;
  }

 private:
  const ir::Graph& graph_;
  std::vector<bool> taken_;  // [value that owns the storage]
};

int64_t mask_bytes(const ir::Graph& graph, const ir::Node& node, int64_t rows) {
  if (node.outputs.empty() || !node.outputs[0].valid()) return 0;
  const Value& result = graph[node.outputs[0]];
  return device_bytes(result, rows) / ir::size_bytes(result.dtype);
}

}  // namespace

CostTable estimate(const ir::Graph& graph, const DeviceModel& device,
                   const std::vector<int64_t>& rows,
                   const std::vector<std::vector<int64_t>>& saved) {
  RANNC_CHECK(saved.empty() || saved.size() == graph.nodes.size(),
              fmt::format("saved bytes of {} nodes, but the graph has {}", saved.size(),
                          graph.nodes.size()));
  CostTable table;
  table.rows = rows;
  table.node.resize(graph.nodes.size());
  SavedStorages storages(graph);
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    const std::vector<ValueId> operands = graph.operands({index});
    const OperatorClass kind = operator_class(ir::known_op(node));
    std::vector<NodeCost>& costs = table.node[index];
    for (int64_t count : rows) {
      costs.push_back(Roofline(graph, node, operands, device, kind, count).cost());
    }
    if (!saved.empty()) {
      for (size_t i = 0; i < rows.size(); ++i) costs[i].saved_bytes = saved[index].at(i);
      continue;
    }
    if (!Roofline(graph, node, operands, device, kind, rows.at(0)).has_backward()) continue;
    const std::vector<ValueId> kept = storages.take(node, operands, kind.saves);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (ValueId value : kept) costs[i].saved_bytes += device_bytes(graph[value], rows[i]);
      if (kind.saves == Saves::mask) costs[i].saved_bytes += mask_bytes(graph, node, rows[i]);
    }
  }
  verify(table, graph);
  return table;
}

MatrixWork training_work(const ir::Graph& graph, const DeviceModel& device, int64_t rows) {
  MatrixWork sum;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    const std::vector<ValueId> operands = graph.operands({index});
    const OperatorClass kind = operator_class(ir::known_op(node));
    const MatrixWork work = Roofline(graph, node, operands, device, kind, rows).training_work();
    sum.flops += work.flops;
    sum.peak_s += work.peak_s;
  }
  return sum;
}

}  // namespace rannc::cost
