#include "runtime/call/whole_batch_prelude.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "rannc/ops/dtype.h"
#include "runtime/call/gradient_sum.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {

Prelude::Prelude(const std::vector<ir::Graph>& rounds, const ops::Objects& objects,
                 c10::Device device)
    : device_(device) {
  for (const ir::Graph& graph : rounds) {
    Round round{{}, Interpreter(graph, objects, device)};
    for (ir::ValueId output : graph.outputs) round.results.push_back(graph[output]);
    size_ += round.results.size();
    rounds_.push_back(std::move(round));
  }
}

std::vector<std::string> Prelude::state_names() const {
  std::vector<std::string> names;
  for (const Round& round : rounds_) {
    const std::vector<std::string>& own = round.interpreter.state_names();
    names.insert(names.end(), own.begin(), own.end());
  }
  return names;
}

void Prelude::run(std::vector<at::Tensor>& inputs,
                  const std::function<at::Tensor(const std::string&)>& state, int64_t rows,
                  int64_t global_rows, comm::Communicator& comm, comm::Stream& stream) const {
  const at::NoGradGuard no_grad;
  for (const Round& round : rounds_) {
    std::vector<at::Tensor> parts = own_parts(round, inputs, state, rows, global_rows);
    sum_scalars(parts, comm, stream, "reduction of what the loss divides by");
    for (size_t index = 0; index < parts.size(); ++index) {
      inputs.push_back(parts[index].to(ops::to_torch(round.results[index].dtype)));
    }
  }
}

/// What this rank's rows add to each number. In float64, in which integers are exact up to 2^53.
std::vector<at::Tensor> Prelude::own_parts(
    const Round& round, const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const std::string&)>& state, int64_t rows,
    int64_t global_rows) const {
  std::vector<at::Tensor> parts;
  if (rows == 0) {
    for (const ir::Value& result : round.results) {
      const c10::Device where = result.on_host ? c10::Device(c10::kCPU) : device_;
      parts.push_back(
          at::zeros(sizes_at(result, 0), at::TensorOptions().dtype(at::kDouble).device(where)));
    }
    return parts;
  }
  std::vector<at::Tensor> held;
  for (const std::string& name : round.interpreter.state_names()) held.push_back(state(name));
  const double weight = static_cast<double>(rows) / static_cast<double>(global_rows);
  for (const at::Tensor& result : round.interpreter.run(inputs, held, rows)) {
    const at::Tensor part = result.to(at::kDouble);
    const bool is_mean = round.results[parts.size()].rows.kind == ir::RowKind::mean;
    parts.push_back(is_mean && weight != 1 ? part.mul(weight) : part);
  }
  return parts;
}

}  // namespace rannc::runtime
