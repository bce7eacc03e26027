#include "runtime/call/check_arguments.h"

#include <c10/util/StringUtil.h>

#include <string>

#include "rannc/ops/dtype.h"
#include "rannc/util/error.h"
#include "runtime/rows_layout.h"

namespace rannc::runtime {
namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "missing";
  return c10::str(ir::name(ops::from_torch(tensor.scalar_type())), tensor.sizes());
}

void check_state(const char* what, const std::vector<std::string>& names,
                 const std::vector<std::vector<int64_t>>& sizes,
                 const std::vector<at::Tensor>& tensors) {
  RANNC_CHECK(tensors.size() == names.size(), c10::str(tensors.size()));
  for (size_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    if (tensor.defined() && tensor.sizes() == c10::IntArrayRef(sizes[index])) continue;
    throw Error(c10::str(what, " '", names[index], "' is ", describe(tensor),
                         ", but the model was traced with the shape ",
                         c10::IntArrayRef(sizes[index])));
  }
}

}  // namespace

void check_inputs(const RankPart& part, int64_t rows, const std::vector<at::Tensor>& inputs) {
  const ir::Graph& graph = part.graph;
  const size_t arguments = graph.inputs.size() - part.prelude.size();
  if (inputs.size() != arguments) {
    throw Error(c10::str("the model was traced with ", arguments,
                         " tensor arguments, but was called with ", inputs.size()));
  }
  for (size_t index = 0; index < inputs.size(); ++index) {
    const ir::Value& value = graph[graph.inputs[index]];
    const at::Tensor& input = inputs[index];
    const std::vector<int64_t> sizes = sizes_at(value, rows);
    if (input.defined() && input.sizes() == c10::IntArrayRef(sizes) &&
        input.scalar_type() == ops::to_torch(value.dtype)) {
      const c10::Device expected = part.device_of(value);
      if (input.device() == expected) continue;
      throw Error(c10::str("argument '", value.name, "' is on ", input.device(), ", but rank ",
                           part.rank, " computes with it on ", expected,
                           ".\n  Move it there before the call, as without RaNNC."));
    }
    throw Error(c10::str("argument '", value.name, "' is ", describe(input),
                         ", but the model was traced and planned for ", ir::name(value.dtype),
                         c10::IntArrayRef(sizes), " on rank ", part.rank,
                         ".\n  Call it with dtypes and shapes of the first call."));
  }
}

void check_arguments(const RankPart& part, int64_t rows, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& parameters,
                     const std::vector<at::Tensor>& buffers) {
  check_inputs(part, rows, inputs);
  check_state("parameter", part.parameter_names, part.parameter_sizes, parameters);
  check_state("buffer", part.buffer_names, part.buffer_sizes, buffers);
}

}  // namespace rannc::runtime
