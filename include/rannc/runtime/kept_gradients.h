#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::runtime {

/// Gradients of backward passes whose sum over the replicas is put off: what this rank has summed
/// up itself. The calls of all executors of a model share one. Belongs to the thread that trains.
class KeptGradients {
 public:
  /// `stream`: of the device that computes them. `float32_sums` as in Options.
  explicit KeptGradients(std::shared_ptr<comm::Stream> stream, bool float32_sums = false)
      : stream_(std::move(stream)), float32_sums_(float32_sums) {}

  /// Backward passes since the last sum() or drop(). The same on all ranks that train alike.
  [[nodiscard]] int64_t passes() const { return passes_; }
  void count_pass() { ++passes_; }

  /// Adds `gradient`, which may be undefined and is given away, of a parameter whose gradients are
  /// summed over `ranks` (empty: this rank alone holds it). Every one of these ranks calls it for
  /// the same parameters; `parameter` is only asked for its size and dtype.
  void add(const std::vector<int>& ranks, const std::string& name, const at::Tensor& parameter,
           at::Tensor gradient);

  /// Hands over what is kept of a parameter, if anything.
  [[nodiscard]] at::Tensor take(const std::vector<int>& ranks, const std::string& name);

  /// Sums over ranks what nobody has taken, by parameter, and forgets it. Collective: every rank
  /// calls it after the same passes.
  [[nodiscard]] std::map<std::string, at::Tensor> sum(comm::Communicator& comm);

  void drop();

  /// What was taken is gone with a backward that failed: who steps now would miss it. Until drop().
  void lose() { lost_ = true; }
  [[nodiscard]] bool lost() const { return lost_; }

 private:
  std::shared_ptr<comm::Stream> stream_;
  bool float32_sums_;
  // Detached aliases; `.grad` is what is kept. Ordered alike on all ranks.
  std::map<std::vector<int>, std::map<std::string, at::Tensor>> parameters_;
  int64_t passes_ = 0;
  bool lost_ = false;
};

}  // namespace rannc::runtime
