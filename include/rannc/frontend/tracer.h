#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rannc/frontend/capture.h"

namespace rannc::frontend {

/// Records what a model calls in this thread, with torch's TorchScript tracer. Use: declare the
/// tensors that the call starts from, start(), run the model, finish().
///
/// One at a time per thread, and in a thread of its own: a trace that failed leaves thread-local
/// state of torch behind that spoils the next one. All calls hold the GIL.
class Tracer {
 public:
  /// Lines of files below `torch_path` and `own_path` are not the user's: a node's source line is
  /// the innermost other one.
  Tracer(std::string torch_path, std::string own_path);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// `batch_dim`: the dimension that holds the rows, none when the tensor has no rows.
  void add_input(const std::string& name, const at::Tensor& tensor, std::optional<int> batch_dim);
  /// A parameter or a buffer by its full module path, tied ones with all their names. `original` is
  /// the model's own tensor: code that holds on to it means the same value.
  void add_state(ir::ValueKind kind, std::vector<std::string> names, const at::Tensor& tensor,
                 const at::Tensor& original);
  /// The name that errors and the graph use for a tensor which is neither parameter nor buffer.
  void name_constant(const at::Tensor& tensor, const std::string& name);

  void start();
  /// Ends recording, in the thread that started it; finish() does it too.
  void stop();

  void enter_module(const std::string& path);
  void leave_module();
  [[nodiscard]] std::string module() const;

  /// Between hide() and show() torch does not see that it is traced; calls nest.
  void hide();
  void show();
  /// Whether an operator that runs now is to be recorded by hand: tracing is on, and no operator
  /// around it has been recorded.
  [[nodiscard]] bool unrecorded() const;

  /// Records a registered operator, "aten::convolution". `below_autograd`: `outputs` do not have
  /// their gradient function yet.
  void record_operator(const std::string& name, const std::vector<c10::IValue>& arguments,
                       const std::vector<at::Tensor>& outputs, bool below_autograd);
  /// Records a call of `object`, which has written the tensors `written` in place; `op` names it.
  /// Outputs that are not defined stand for None.
  void record_object(ir::OpKind kind, const std::string& op, const c10::IValue& object,
                     const std::vector<c10::IValue>& arguments,
                     const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& written);
  /// Tells of a call of a custom autograd function that torch itself has just recorded, and now
  /// computes, what record_object() would be told; all its operands are tensors or plain values.
  void describe_python(const std::string& op, const c10::IValue& object,
                       const std::vector<at::Tensor>& outputs,
                       const std::vector<at::Tensor>& written);
  /// From now on `tensor` means the constant `value`.
  void record_constant(const at::Tensor& tensor, const at::Tensor& value);
  /// Where torch reads the number that `tensor` holds, it is `number` in every call.
  void record_number(const at::Tensor& tensor, const c10::IValue& number);

  /// Ends the trace; `name` becomes the graph's. Throws TraceError when the trace holds something
  /// that the graph cannot.
  [[nodiscard]] Trace finish(const std::string& name, int64_t rows,
                             const std::vector<at::Tensor>& outputs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rannc::frontend
