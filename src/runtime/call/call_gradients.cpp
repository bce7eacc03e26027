// A call's gradients after its last micro-batch: summed over replicas, kept, handed over.

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "rannc/ops/shares_memory.h"
#include "rannc/plan/outputs.h"
#include "rannc/util/error.h"
#include "runtime/call/pipeline_call.h"
#include "runtime/call/tags.h"

namespace rannc::runtime {

at::Tensor PipelineCall::gradient_of_loss(const std::vector<at::Tensor>& output_grads) const {
  const ir::ValueId loss = plan::loss_of(part_->graph).value();
  at::Tensor sum;
  for (size_t position = 0; position < output_grads.size(); ++position) {
    const at::Tensor& grad = output_grads[position];
    if (!grad.defined()) continue;
    const ir::ValueId output = part_->graph.outputs[position];
    if (output != loss) {
      throw Error(c10::str("backward reached the output '", part_->graph[output].name,
                           "', but under the schedule '", plan::name(program().schedule),
                           "' only the loss has a gradient.\n  Use Config(schedule='gpipe'), or "
                           "compute all of the loss in forward()."));
    }
    sum = sum.defined() ? sum.add(grad) : grad;
  }
  if (sum.defined() && loss_seed_ != 1) sum = sum.to(at::kDouble).div(loss_seed_);
  return sum;
}

std::vector<at::Tensor> PipelineCall::scaled_gradients(const at::Tensor& factor) {
  std::vector<at::Tensor> gradients = take_gradients();
  const bool is_one = factor.defined() && factor.item<double>() == 1;
  for (at::Tensor& gradient : gradients) {
    if (!factor.defined()) gradient.reset();
    if (gradient.defined() && !is_one) gradient.mul_(factor);
  }
  return gradients;
}

std::vector<at::Tensor> PipelineCall::scaled_copies(const at::Tensor& factor) const {
  std::vector<at::Tensor> gradients;
  const auto add = [&](const at::Tensor& pending) {
    const bool flows = factor.defined() && pending.defined();
    gradients.push_back(flows ? pending.mul(factor).to(pending.scalar_type()) : at::Tensor());
  };
  // grad() warns of an alias that is no leaf.
  for (const at::Tensor& alias : parameters_) add(alias.mutable_grad());
  for (const Assembly& gradient : input_grads_) add(gradient.tensor);
  return gradients;
}

std::vector<at::Tensor> PipelineCall::take_gradients() {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& alias : parameters_) {
    gradients.push_back(std::move(alias.mutable_grad()));
    alias.mutable_grad().reset();
  }
  for (Assembly& assembly : input_grads_) {
    at::Tensor gradient = std::move(assembly.tensor);
    // The caller may add to it, as to every gradient.
    if (gradient.defined() && ops::shares_memory(gradient)) gradient = gradient.clone();
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

/// Autograd keeps the call as long as the user keeps the loss.
void PipelineCall::forget() {
  parameters_.clear();
  buffers_.clear();
  user_grads_.clear();
  input_grads_.clear();
  batches_.clear();
}

std::vector<std::unique_ptr<GradientSum>> PipelineCall::make_sums(
    const std::vector<at::Tensor>& parameters) const {
  std::vector<std::unique_ptr<GradientSum>> sums(program().reductions.size());
  for (size_t index = 0; index < sums.size(); ++index) {
    const plan::Reduction& reduction = program().reductions[index];
    if (!std::ranges::binary_search(reduction.ranks, part_->rank)) continue;
    std::vector<at::Tensor> of_reduction;
    for (ir::ValueId value : reduction.parameters) {
      of_reduction.push_back(parameters[part_->parameter_places[value.index]]);
    }
    sums[index] = std::make_unique<GradientSum>(
        std::move(of_reduction), orders_->buckets[index], number_, *part_->comm, *part_->stream,
        reduction.ranks, first_bucket_tag(number_, index), count_tag(index));
  }
  return sums;
}

/// [parameter]: of those whose gradients this rank sums with others.
std::vector<std::optional<PipelineCall::SumPlace>> PipelineCall::sum_places() const {
  std::vector<std::optional<SumPlace>> places(part_->parameter_names.size());
  for (size_t index = 0; index < program().reductions.size(); ++index) {
    const plan::Reduction& reduction = program().reductions[index];
    if (!std::ranges::binary_search(reduction.ranks, part_->rank)) continue;
    for (size_t position = 0; position < reduction.parameters.size(); ++position) {
      const ir::ValueId value = reduction.parameters[position];
      places[part_->parameter_places[value.index]] = SumPlace{index, position};
    }
  }
  return places;
}

/// Before autograd adds to the gradients of a Program that sums them.
void PipelineCall::prepare_sums() {
  if (with_backward_ && summing_ == Summing::in_program) sums_ = make_sums(parameters_);
}

/// Gradients that no later backward of this rank adds to are complete when the stage's last one
/// gives them.
void PipelineCall::begin_sums(int stage) {
  for (size_t index = 0; index < sums_.size(); ++index) {
    if (orders_->completed_by[index] == stage && sums_[index]) sums_[index]->begin_last_backward();
  }
}

void PipelineCall::start_sums(int stage) {
  for (size_t index = 0; index < sums_.size(); ++index) {
    if (orders_->completed_by[index] == stage && sums_[index]) sums_[index]->start_rest();
  }
}

void PipelineCall::reduce_gradients(size_t reduction) {
  sums_[reduction]->wait();
  sums_[reduction].reset();
}

/// [parameter]: the ranks that sum its gradients; empty where this rank alone holds it.
std::vector<std::vector<plan::Rank>> PipelineCall::ranks_of_parameters() const {
  std::vector<std::vector<plan::Rank>> ranks(part_->parameter_names.size());
  for (const plan::Reduction& reduction : program().reductions) {
    if (!std::ranges::binary_search(reduction.ranks, part_->rank)) continue;
    for (ir::ValueId value : reduction.parameters)
      ranks[part_->parameter_places[value.index]] = reduction.ranks;
  }
  return ranks;
}

void PipelineCall::keep(std::vector<at::Tensor>& gradients) {
  const auto ranks = ranks_of_parameters();
  for (size_t index = 0; index < parameters_.size(); ++index) {
    kept_->add(ranks[index], part_->parameter_names[index], parameters_[index],
               std::move(gradients[index]));
    gradients[index].reset();
  }
  kept_->count_pass();
}

void PipelineCall::seed_kept_gradients() {
  if (kept_->passes() == 0) return;
  const auto ranks = ranks_of_parameters();
  for (size_t index = 0; index < parameters_.size(); ++index) {
    parameters_[index].mutable_grad() = kept_->take(ranks[index], part_->parameter_names[index]);
  }
}

void PipelineCall::sum_late(std::vector<at::Tensor>& gradients) {
  // What is summed now: what is kept, and this call's gradients unless they are sums already.
  std::vector<at::Tensor> summed;
  const auto ranks = ranks_of_parameters();
  for (size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor alias = parameters_[index].detach();
    at::Tensor& sum = alias.mutable_grad();
    sum = kept_->take(ranks[index], part_->parameter_names[index]);
    if (summing_ == Summing::late && gradients[index].defined()) {
      sum = sum.defined() ? sum.add_(gradients[index]) : gradients[index];
      gradients[index].reset();
    }
    summed.push_back(std::move(alias));
  }
  const std::vector<plan::Action>& actions = program().actions[static_cast<size_t>(part_->rank)];
  const auto sums = make_sums(summed);
  recorder_.start();
  for (const auto& sum : sums) {
    if (sum) sum->start_rest();
  }
  for (size_t at = 0; at < actions.size(); ++at) {
    if (actions[at].kind != plan::ActionKind::reduce_gradients) continue;
    sums[static_cast<size_t>(actions[at].index)]->wait();
    recorder_.end(static_cast<int>(at), actions[at].kind);
  }
  for (size_t index = 0; index < summed.size(); ++index) {
    at::Tensor& sum = summed[index].mutable_grad();
    if (!sum.defined()) continue;
    gradients[index] = gradients[index].defined() ? gradients[index].add_(sum) : sum;
  }
}

bool PipelineCall::communicates() const {
  if (!plan::backward_comes_first(program().schedule)) return true;
  if (summing_ == Summing::kept) return false;
  return summing_ == Summing::late || kept_->passes() > 0;
}

void PipelineCall::throw_given_away() const {
  throw Error(c10::str(
      "backward was called twice on one forward pass, ",
      plan::backward_comes_first(program().schedule) ? "whose gradients were given away"
                                                     : "whose intermediate values were freed",
      " by the first.\n  Call the first with retain_graph=True, or call the model again in "
      "between."));
}

}  // namespace rannc::runtime
