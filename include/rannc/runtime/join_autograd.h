#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "rannc/runtime/executor.h"

namespace rannc::runtime {

/// Called for each backward through a call, with the gradients of the outputs (undefined where none
/// comes in), whether the user asks that it may be repeated, and the backward itself, to be called
/// once with whether it may, and BackwardOf::outputs. Grad mode is on where the user asks for
/// second derivatives, which there are none of.
using AroundBackward =
    std::function<void(const std::vector<at::Tensor>& output_grads, bool keep_graph,
                       const std::function<void(bool keep_graph, int64_t outputs)>& backward)>;

/// Joins a call to the user's autograd graph, as one node: all outputs, and all it is made from.
///
/// `leaves` are the real parameters and then the arguments, so that autograd itself does everything
/// about `.grad`: accumulation, hooks, torch.autograd.grad. What belongs to a call is kept in its
/// node, so several forwards before a backward are right. Also without leaves, because the backward
/// of a rank without trainable parameters takes part in the pipeline.
///
/// Returns call->outputs(); those that are `differentiable` require grad. Where the backward of the
/// pipeline has run with its forward, outputs beside the loss belong to the node all the same, so
/// that a backward through them is an error and not a missing gradient.
[[nodiscard]] std::vector<at::Tensor> join_autograd(std::shared_ptr<Call> call,
                                                    const std::vector<at::Tensor>& leaves,
                                                    const std::vector<bool>& differentiable,
                                                    AroundBackward around);

}  // namespace rannc::runtime
