#include "runtime/stage/show_values.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/mean.h>
#include <c10/util/StringUtil.h>

#include "rannc/util/log.h"

namespace rannc::runtime {
namespace {

std::string entries(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_complex()) return "";
  const at::Tensor numbers = tensor.detach().to(at::kDouble);
  const auto [least, largest] = at::aminmax(numbers);
  return c10::str(": mean ", numbers.mean().item<double>(), ", from ", least.item<double>(), " to ",
                  largest.item<double>());
}

}  // namespace

void show_values(const ir::Graph& graph, const std::vector<ir::ValueId>& values,
                 const std::vector<at::Tensor>& tensors, const std::string& where) {
  for (size_t index = 0; index < values.size() && index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    if (!tensor.defined()) continue;
    // Lines of lower levels are those of rank 0 only.
    log::warn("runtime", c10::str(where, ": ", graph[values[index]].name, " ", tensor.scalar_type(),
                                  " ", tensor.sizes(), entries(tensor)));
  }
}

}  // namespace rannc::runtime
