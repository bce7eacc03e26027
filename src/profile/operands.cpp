#include "profile/operands.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <mutex>

#include "rannc/ops/backend.h"
#include "rannc/ops/dtype.h"

namespace rannc::profile {
namespace {

/// A long tensor of an operator that is timed repeats this many random numbers: drawing each would
/// take longer than most operators that read them.
/// tuned by: a bound on the time of profiling.
/// without it: profiling a model with large operands is mostly drawing numbers.
constexpr int64_t kPatternLength = 1 << 16;

int64_t count(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

/// Integers below this are valid wherever the operator uses its operand `number`: rows of a table,
/// the first operand, for the indices of an embedding, zero for all else, such as offsets of bags.
int64_t index_limit(const ir::Graph& graph, ir::NodeId node, size_t number, int64_t rows) {
  if (number != 1 || !graph[node].op.starts_with("aten::embedding")) return 1;
  const ir::Value& table = graph[graph.operands(node)[0]];
  return table.dims.empty() ? 1 : table.dims[0].at(rows);
}

at::Tensor pattern(const ir::Value& value, int64_t length, int64_t limit,
                   const at::Generator& generator) {
  const c10::ScalarType type = ops::to_torch(value.dtype);
  if (value.dtype == ir::DType::boolean) {
    return at::randint(2, {length}, generator, at::TensorOptions().dtype(type));
  }
  if (!ir::is_floating(value.dtype)) {
    return at::randint(std::max<int64_t>(limit, 1), {length}, generator,
                       at::TensorOptions().dtype(type));
  }
  return at::rand({length}, generator, at::TensorOptions().dtype(at::kFloat)).to(type);
}

/// `tensor` with other strides, where they fit.
at::Tensor laid_out(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  if (strides.size() != tensor.sizes().size() || tensor.strides() == c10::IntArrayRef(strides)) {
    return tensor;
  }
  at::Tensor result = at::empty_strided(tensor.sizes(), strides, tensor.options());
  if (result.is_non_overlapping_and_dense()) return result.copy_(tensor);
  // With holes, or several elements in one place: what lies there decides.
  const auto length = static_cast<int64_t>(result.storage().nbytes() / result.element_size());
  if (tensor.numel() == 0 || length == 0) return tensor;
  const at::Tensor all = result.as_strided({length}, {1}, 0);
  const at::Tensor flat = tensor.flatten();
  for (int64_t begin = 0; begin < length; begin += flat.numel()) {
    const int64_t part = std::min(flat.numel(), length - begin);
    all.narrow(0, begin, part).copy_(flat.narrow(0, 0, part));
  }
  return result;
}

at::Tensor random_tensor(const ir::Value& value, int64_t rows, int64_t limit, c10::Device device,
                         const at::Generator& generator) {
  std::vector<int64_t> sizes;
  for (const ir::AffineInt& dim : value.dims) sizes.push_back(std::max<int64_t>(dim.at(rows), 0));
  const int64_t elements = count(sizes);
  const int64_t length = std::min(elements, kPatternLength);
  at::Tensor tensor = pattern(value, length, limit, generator);
  if (length < elements) {
    tensor = tensor.repeat({(elements + length - 1) / length}).narrow(0, 0, elements);
  }
  tensor = tensor.reshape(sizes).contiguous();
  return value.on_host ? tensor : tensor.to(device);
}

}  // namespace

std::vector<at::Tensor> random_operands(const ir::Graph& graph, ir::NodeId node, int64_t rows,
                                        c10::Device device, at::Generator generator,
                                        const std::vector<std::vector<int64_t>>& strides) {
  const std::vector<ir::ValueId> ids = graph.operands(node);
  std::vector<at::Tensor> operands;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto same = std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]);
    if (same != ids.begin() + static_cast<std::ptrdiff_t>(i)) {
      operands.push_back(operands[static_cast<size_t>(same - ids.begin())]);
      continue;
    }
    const ir::Value& value = graph[ids[i]];
    const int64_t limit = index_limit(graph, node, i, rows);
    at::Tensor tensor = random_tensor(value, rows, limit, device, generator);
    if (i < strides.size()) tensor = laid_out(tensor, strides[i]);
    if (value.requires_grad && ir::is_floating(value.dtype)) tensor.requires_grad_(true);
    operands.push_back(std::move(tensor));
  }
  return operands;
}

RandomStateGuard::RandomStateGuard(c10::Device device) {
  const auto remember = [&](at::Generator generator) {
    const std::scoped_lock lock(generator.mutex());
    at::Tensor state = at::Tensor(generator.get_state());
    states_.emplace_back(std::move(generator), std::move(state));
  };
  remember(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
  if (device.is_cpu()) return;
  if (std::optional<at::Generator> generator = ops::generator_of(device)) remember(*generator);
}

RandomStateGuard::~RandomStateGuard() {
  for (auto& [generator, state] : states_) {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace rannc::profile
