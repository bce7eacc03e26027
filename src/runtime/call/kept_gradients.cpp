#include "rannc/runtime/kept_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "runtime/call/gradient_sum.h"

namespace rannc::runtime {

void KeptGradients::add(const std::vector<int>& ranks, const std::string& name,
                        const at::Tensor& parameter, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  at::Tensor& alias = parameters_[ranks][name];
  if (!alias.defined()) alias = parameter.detach();
  if (!gradient.defined()) return;
  if (alias.grad().defined()) {
    alias.mutable_grad().add_(gradient);
  } else {
    alias.mutable_grad() = std::move(gradient);
  }
}

at::Tensor KeptGradients::take(const std::vector<int>& ranks, const std::string& name) {
  const auto group = parameters_.find(ranks);
  if (group == parameters_.end()) return {};
  const auto found = group->second.extract(name);
  if (group->second.empty()) parameters_.erase(group);
  return found.empty() ? at::Tensor() : found.mapped().grad();
}

std::map<std::string, at::Tensor> KeptGradients::sum(comm::Communicator& comm) {
  std::map<std::string, at::Tensor> sums;
  const int64_t passes = std::exchange(passes_, 0);
  for (const auto& [ranks, group] : std::exchange(parameters_, {})) {
    std::vector<at::Tensor> aliases;
    for (const auto& [name, alias] : group) aliases.push_back(alias);
    if (!ranks.empty()) sum_gradients(aliases, passes, comm, *stream_, ranks, float32_sums_);
    for (const auto& [name, alias] : group) {
      if (alias.grad().defined()) sums.emplace(name, alias.grad());
    }
  }
  return sums;
}

void KeptGradients::drop() {
  parameters_.clear();
  passes_ = 0;
  lost_ = false;
}

}  // namespace rannc::runtime
