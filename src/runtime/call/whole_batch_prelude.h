#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"
#include "rannc/ops/objects.h"
#include "rannc/runtime/interpreter.h"

namespace rannc::runtime {

/// Computes what has to be known of the whole batch before its schedule starts: ir::HoistedSums.
class Prelude {
 public:
  Prelude(const std::vector<ir::Graph>& rounds, const ops::Objects& objects, c10::Device device);

  [[nodiscard]] size_t size() const { return size_; }  ///< numbers that run() adds
  /// Buffers that it reads: every rank needs them.
  [[nodiscard]] std::vector<std::string> state_names() const;

  /// Appends to `inputs`, this rank's arguments, the sums and means over the batch of all ranks.
  /// Every rank calls it, also one without rows; alone, a rank sends nothing.
  void run(std::vector<at::Tensor>& inputs,
           const std::function<at::Tensor(const std::string&)>& state, int64_t rows,
           int64_t global_rows, comm::Communicator& comm, comm::Stream& stream) const;

 private:
  struct Round {
    std::vector<ir::Value> results;  ///< of kind sum or mean
    mutable Interpreter interpreter;
  };
  [[nodiscard]] std::vector<at::Tensor> own_parts(
      const Round& round, const std::vector<at::Tensor>& inputs,
      const std::function<at::Tensor(const std::string&)>& state, int64_t rows,
      int64_t global_rows) const;

  std::vector<Round> rounds_;
  size_t size_ = 0;
  c10::Device device_;
};

}  // namespace rannc::runtime
