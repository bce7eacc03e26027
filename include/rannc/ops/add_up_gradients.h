#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace rannc::ops {

/// The most bytes of gradients that one node adds up: they are all held until the end of a
/// backward, beside their sums.
/// tuned by: `rannc run -n 1 benchmarks/runtime/peers.py --model tiny`, which the joined node made
/// 4 % faster; the limit itself was not varied.
/// without it: without a limit, all gradients of a model are held twice; with a small one, autograd
/// takes 2 us for each small parameter.
inline constexpr int64_t kMostJoinedBytes = int64_t{1} << 20;

/// Lets one node of autograd add up the gradients of several tensors, each in its `.grad`. torch's
/// AccumulateGrad is a node for each, and its engine takes about 2 us for a node, more than small
/// sums need. It may also make one memory the sums of two tensors, as docs/gotchas.md shows.
///
/// Args:
///   tensors: Where the node finds them; to stay there as long as what is computed from them.
///   joined: Indices of those of this node, without a history so far.
///   added: Hears of each of these tensors when a backward has added all that it will add to it.
void add_up_gradients(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& joined,
                      std::function<void(size_t)> added = {});

/// A node from which gradients go on to other edges, though not within one run of autograd.
class LeadsOn : public torch::autograd::Node {
 public:
  using Node::Node;
  [[nodiscard]] virtual torch::autograd::Edge leads_to(uint32_t input) const = 0;
};

/// The sum so far, for an operator whose backward adds to it by itself, rather than giving a
/// gradient of the same size to be added. Null where there is none yet, it is not dense, or the
/// edge leads elsewhere.
[[nodiscard]] at::Tensor* sum_at(const torch::autograd::Edge& edge);

/// Whether the node is of such an operator: its input 1 is a weight.
[[nodiscard]] bool adds_weight_gradients(const torch::autograd::Node* node);

}  // namespace rannc::ops
