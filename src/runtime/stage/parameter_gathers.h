#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rannc/comm/communicator.h"
#include "runtime/stage/shared_parameters.h"

namespace rannc::runtime {

/// The parameters of a stage that its replicas share, in one call: whole while a node needs them,
/// and without memory else. Autograd keeps the whole tensors, or views of them, between a forward
/// and its backward; their memory comes back in the same place.
///
/// Every replica goes through the same steps in the same order, in each forward and backward of a
/// micro-batch, also without rows in it: what its nodes do not come to is gathered all the same.
class ParameterGathers : public std::enable_shared_from_this<ParameterGathers> {
 public:
  static constexpr const char* kGather = "shared parameters";
  static constexpr const char* kScatter = "gradients of shared parameters";

  /// `parts`: [SharedParameters::Parameter] what this rank keeps. `shared` and `sharing` outlive
  /// it.
  ParameterGathers(const SharedParameters& shared, const Sharing& sharing, int stage,
                   std::vector<at::Tensor> parts, std::vector<std::string> names,
                   std::shared_ptr<comm::Communicator> comm, std::shared_ptr<comm::Stream> stream);

  [[nodiscard]] const SharedParameters& shared() const { return shared_; }
  /// Of the whole shape; has memory while a node that needs it runs.
  [[nodiscard]] const at::Tensor& whole(size_t parameter) const {
    return wholes_[parameter].tensor;
  }

  /// What this rank keeps.
  [[nodiscard]] const at::Tensor& part(size_t parameter) const { return parts_[parameter]; }

  /// Around a forward or a backward of one micro-batch.
  void begin(bool backward);
  void end();
  /// A node is about to run; its backward is, in a backward.
  void need(size_t node);
  /// Its results are there: before their backward what it needs will be whole again.
  void follow(size_t node, std::span<at::Tensor> results);
  /// A backward has given the gradient of a whole parameter.
  void add(size_t parameter, at::Tensor gradient);

  /// After the backwards: gradients that no rank has become undefined.
  void agree();
  /// The sum so far of this rank's part of a gradient.
  [[nodiscard]] at::Tensor& sum(size_t parameter) { return sums_[parameter]; }
  /// Before backwards: the sum begins with what was kept of earlier ones, if anything.
  void begin_with(size_t parameter, at::Tensor kept);
  /// Before a backward that repeats an earlier one.
  void reset();

 private:
  struct Whole {
    at::Tensor tensor;
    at::Tensor arriving;  ///< what its memory will be
    comm::Handle gather;
    bool there = false;
  };
  struct Scatter {
    size_t parameter;
    at::Tensor numbers;
    comm::Handle handle;
  };

  void enter(size_t step);
  void start_gather(size_t parameter);
  void finish_gather(size_t parameter);
  void let_go(size_t parameter);
  void scatter(size_t parameter);
  void finish_scatters(std::optional<size_t> but_of_bucket);
  void check_versions() const;
  [[nodiscard]] const std::vector<SharedParameters::Buckets>& steps() const {
    return backward_ ? shared_.backward : shared_.forward;
  }

  const SharedParameters& shared_;
  const Sharing& sharing_;
  const int stage_;
  const std::vector<at::Tensor> parts_;
  const std::vector<std::string> names_;
  std::vector<int64_t> versions_;
  const std::shared_ptr<comm::Communicator> comm_;
  const std::shared_ptr<comm::Stream> stream_;
  std::vector<Whole> wholes_;
  std::vector<at::Tensor> gradients_;  ///< of this backward, until they are scattered
  std::vector<at::Tensor> sums_;
  std::vector<int64_t> found_;  ///< backwards of this rank that have given a gradient
  std::vector<Scatter> scatters_;
  bool backward_ = false;
  size_t at_ = 0;      ///< steps that have been entered
  size_t issued_ = 0;  ///< of SharedParameters::scattered
};

}  // namespace rannc::runtime
