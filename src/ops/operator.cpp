#include "rannc/ops/operator.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "ops/arguments.h"
#include "ops/callee.h"
#include "ops/place.h"
#include "rannc/util/error.h"

namespace rannc::ops {

std::string place(const ir::Node& node) {
  std::string text = c10::str("node '", node.name, "' (", node.op.empty() ? "function" : node.op);
  if (!node.module.empty()) text += c10::str(" in module '", node.module, "'");
  if (!node.source.file.empty()) text += c10::str(", ", node.source.file, ":", node.source.line);
  return text + ")";
}

namespace {

/// Tensors in the order that the operator returned them, lists and tuples flattened. What is no
/// tensor (None, the sizes that some attention kernels return) takes a place but stays undefined.
void flatten(c10::IValue value, std::vector<at::Tensor>& results) {
  if (value.isTensor()) {
    results.push_back(std::move(value).toTensor());
  } else if (value.isTensorList()) {
    for (at::Tensor& tensor : std::move(value).toTensorVector()) {
      results.push_back(std::move(tensor));
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) flatten(element, results);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) flatten(element, results);
  } else {
    results.emplace_back();
  }
}

/// The line that says what went wrong: the first one, but the last one of what the TorchScript
/// interpreter throws, which starts with its own traceback.
std::string essence(std::string_view message, bool from_torchscript) {
  while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
  if (from_torchscript) {
    const size_t last = message.rfind('\n');
    return std::string(last == std::string_view::npos ? message : message.substr(last + 1));
  }
  return std::string(message.substr(0, message.find('\n')));
}

}  // namespace

struct Operator::Impl {
  Impl(const ir::Node& the_node, const Objects& objects, c10::Device device)
      : node(the_node), callee(resolve(node, objects)), arguments(node, callee->schema(), device) {}

  void call(std::span<at::Tensor> operands) {
    stack.clear();
    arguments.push(operands, stack);
    try {
      callee->call(stack);
    } catch (const Error&) {
      throw;
    } catch (const InternalError&) {
      throw;
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::exception& error) {  // Python errors and those of TorchScript
      fail(error.what());
    }
  }

  [[noreturn]] void fail(const char* message) {
    stack.clear();
    throw Error(
        c10::str(place(node), " failed: ", essence(message, node.kind == ir::OpKind::scripted)));
  }

  ir::Node node;
  std::unique_ptr<Callee> callee;
  Arguments arguments;
  torch::jit::Stack stack;  // kept between calls for its capacity
};

Operator::Operator(const ir::Graph& graph, ir::NodeId node, const Objects& objects,
                   c10::Device device)
    : impl_(std::make_unique<Impl>(graph[node], objects, device)) {}

Operator::~Operator() = default;
Operator::Operator(Operator&&) noexcept = default;
Operator& Operator::operator=(Operator&&) noexcept = default;

void Operator::set_rows(int64_t rows) { impl_->arguments.set_rows(rows); }

void Operator::call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results) {
  impl_->call(operands);
  results.clear();
  for (c10::IValue& value : impl_->stack) flatten(std::move(value), results);
  impl_->stack.clear();

  const std::vector<ir::ValueId>& outputs = impl_->node.outputs;
  // What returns nothing, as _foreach_mul_() does, has one result in a graph, which is no tensor.
  if (results.empty() && std::ranges::none_of(outputs, &ir::ValueId::valid)) {
    results.resize(outputs.size());
  }
  if (results.size() != outputs.size()) {
    throw Error(c10::str(place(impl_->node), " returned ", results.size(),
                         " tensors, but returned ", outputs.size(),
                         " when the model was captured."));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) results[i].reset();
  }
}

}  // namespace rannc::ops
