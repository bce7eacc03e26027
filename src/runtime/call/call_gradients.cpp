#include "runtime/call/call_gradients.h"

#include <algorithm>
#include <utility>

#include "rannc/ops/add_up_gradients.h"
#include "runtime/call/tags.h"

namespace rannc::runtime {

CallGradients::CallGradients(const RankPart& part, const Orders& orders, int64_t call,
                             const std::vector<at::Tensor>& parameters,
                             const std::vector<std::shared_ptr<ParameterGathers>>& gathers,
                             bool with_backward, bool no_sync, std::shared_ptr<KeptGradients> kept,
                             std::function<void()> completed)
    : part_(part),
      orders_(orders),
      call_(call),
      with_backward_(with_backward),
      kept_(std::move(kept)),
      completed_(std::move(completed)),
      shared_(find_shared(gathers)) {
  if (no_sync) {
    summing_ = Summing::kept;
  } else if (plan::backward_comes_first(orders_.program.schedule) && kept_->passes() > 0) {
    summing_ = Summing::at_end;
  }
  if (with_backward_) places_ = find_places();
  make_aliases(parameters);
  prepare_sums();
}

std::vector<std::optional<CallGradients::Place>> CallGradients::find_places() const {
  std::vector<std::optional<Place>> places(part_.parameter_names.size());
  for (size_t index = 0; index < orders_.program.reductions.size(); ++index) {
    const plan::Reduction& reduction = orders_.program.reductions[index];
    if (!std::ranges::binary_search(reduction.ranks, part_.rank)) continue;
    for (size_t position = 0; position < reduction.parameters.size(); ++position) {
      const ir::ValueId value = reduction.parameters[position];
      places[part_.parameter_places[value.index]] = Place{index, position};
    }
  }
  return places;
}

std::vector<CallGradients::Shared> CallGradients::find_shared(
    const std::vector<std::shared_ptr<ParameterGathers>>& gathers) const {
  std::vector<Shared> found(part_.parameter_names.size());
  for (size_t stage = 0; stage < gathers.size(); ++stage) {
    if (!gathers[stage]) continue;
    const LocalStage& local = part_.stages[stage];
    const auto& parameters = gathers[stage]->shared().parameters;
    for (size_t index = 0; index < parameters.size(); ++index) {
      found[local.state[parameters[index].state].index] = {gathers[stage].get(), index};
    }
  }
  return found;
}

void CallGradients::make_aliases(const std::vector<at::Tensor>& parameters) {
  for (size_t index = 0; index < parameters.size(); ++index) {
    const auto& [gathers, parameter] = shared_[index];
    aliases_.push_back((gathers ? gathers->whole(parameter) : parameters[index]).detach());
  }
  if (!with_backward_) return;
  std::vector<size_t> small;
  int64_t bytes = 0;
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].requires_grad()) continue;
    if (const auto& [gathers, number] = shared_[index]; gathers) {
      ops::add_up_gradients(aliases_, {index}, [this, gathers, number](size_t parameter) {
        gathers->add(number, std::exchange(aliases_[parameter].mutable_grad(), at::Tensor()));
      });
      continue;
    }
    const auto size = static_cast<int64_t>(parameters[index].nbytes());
    const std::optional<Place> place = sums_in_program() ? places_[index] : std::nullopt;
    if (place) {  // its sum over ranks may start when it is complete
      ops::add_up_gradients(aliases_, {index}, [this, place](size_t /*parameter*/) {
        sums_[place->reduction]->added(place->position);
      });
    } else if (bytes + size > ops::kMostJoinedBytes) {
      ops::add_up_gradients(aliases_, {index});
    } else {
      bytes += size;
      small.push_back(index);
    }
  }
  ops::add_up_gradients(aliases_, small);
}

std::vector<std::unique_ptr<GradientSum>> CallGradients::make_sums(
    const std::vector<at::Tensor>& parameters) const {
  const std::vector<plan::Reduction>& reductions = orders_.program.reductions;
  std::vector<std::unique_ptr<GradientSum>> sums(reductions.size());
  for (size_t index = 0; index < sums.size(); ++index) {
    const plan::Reduction& reduction = reductions[index];
    if (!std::ranges::binary_search(reduction.ranks, part_.rank)) continue;
    std::vector<at::Tensor> of_reduction;
    for (ir::ValueId value : reduction.parameters) {
      of_reduction.push_back(parameters[part_.parameter_places[value.index]]);
    }
    sums[index] = std::make_unique<GradientSum>(
        std::move(of_reduction), orders_.program.buckets[index], call_, *part_.comm, *part_.stream,
        reduction.ranks, first_bucket_tag(call_, index), count_tag(index), part_.float32_sums);
  }
  return sums;
}

void CallGradients::prepare_sums() {
  if (!with_backward_ || !sums_in_program()) return;
  sums_ = make_sums(aliases_);
  if (!completed_) return;
  for (const auto& sum : sums_) {
    if (sum) sum->wait_for_issues(completed_);
  }
}

void CallGradients::begin_last_backward(int stage) {
  for (size_t index = 0; index < sums_.size(); ++index) {
    if (orders_.completed_by[index] == stage && sums_[index]) sums_[index]->begin_last_backward();
  }
}

void CallGradients::end_last_backward(int stage) {
  for (size_t index = 0; index < sums_.size(); ++index) {
    if (orders_.completed_by[index] == stage && sums_[index]) sums_[index]->start_rest();
  }
}

bool CallGradients::is_complete(const plan::Communication& bucket) const {
  return sums_[static_cast<size_t>(bucket.index)]->is_complete(static_cast<size_t>(bucket.part));
}

void CallGradients::issue(const plan::Communication& bucket) {
  sums_[static_cast<size_t>(bucket.index)]->issue(static_cast<size_t>(bucket.part));
}

void CallGradients::reduce(size_t reduction) {
  sums_[reduction]->wait();
  sums_[reduction].reset();
}

bool CallGradients::summing() const {
  return std::ranges::any_of(
      sums_, [](const std::unique_ptr<GradientSum>& sum) { return sum && sum->started(); });
}

/// That sum its gradients; empty where this rank alone holds it.
std::vector<plan::Rank> CallGradients::ranks_of(size_t parameter) const {
  const std::optional<Place>& place = places_[parameter];
  return place ? orders_.program.reductions[place->reduction].ranks : std::vector<plan::Rank>();
}

void CallGradients::take_kept(const BackwardOf& of) {
  took_kept_ = kept_->passes() > 0;
  if (!took_kept_) return;
  for (size_t index = 0; index < aliases_.size(); ++index) {
    if (!of.accumulates(index)) continue;  // it stays, and is summed after this backward
    at::Tensor kept = kept_->take(ranks_of(index), part_.parameter_names[index]);
    if (const auto& [gathers, parameter] = shared_[index]; gathers) {
      gathers->begin_with(parameter, std::move(kept));
    } else {
      aliases_[index].mutable_grad() = std::move(kept);
    }
  }
}

void CallGradients::lose_kept() {
  if (took_kept_) kept_->lose();
}

/// This rank's sum so far.
at::Tensor& CallGradients::gradient(size_t parameter) const {
  const auto& [gathers, number] = shared_[parameter];
  // grad() warns of an alias that is no leaf.
  return gathers ? gathers->sum(number) : aliases_[parameter].mutable_grad();
}

std::vector<at::Tensor> CallGradients::take() {
  std::vector<at::Tensor> gradients;
  for (size_t index = 0; index < aliases_.size(); ++index) {
    gradients.push_back(std::exchange(gradient(index), at::Tensor()));
  }
  return gradients;
}

std::vector<at::Tensor> CallGradients::show() const {
  std::vector<at::Tensor> gradients;
  for (size_t index = 0; index < aliases_.size(); ++index) gradients.push_back(gradient(index));
  return gradients;
}

bool CallGradients::sums_at_end() const {
  if (!plan::backward_comes_first(orders_.program.schedule)) return false;
  return summing_ == Summing::at_end || (sums_in_program() && kept_->passes() > 0);
}

void CallGradients::finish(std::vector<at::Tensor>& gradients, Recorder& recorder,
                           const BackwardOf& of) {
  if (summing_ == Summing::kept) {
    keep(gradients, of);
  } else if (sums_at_end()) {
    sum_at_end(gradients, recorder, of);
  }
}

void CallGradients::keep(std::vector<at::Tensor>& gradients, const BackwardOf& of) {
  for (size_t index = 0; index < aliases_.size(); ++index) {
    if (!of.accumulates(index)) gradients[index].reset();
    const auto& [gathers, parameter] = shared_[index];
    kept_->add(ranks_of(index), part_.parameter_names[index],
               gathers ? gathers->part(parameter) : aliases_[index], std::move(gradients[index]));
    gradients[index].reset();
  }
  kept_->count_pass();
}

void CallGradients::sum_at_end(std::vector<at::Tensor>& gradients, Recorder& recorder,
                               const BackwardOf& of) {
  // What is summed now: what is kept, and this call's gradients unless they are sums already.
  std::vector<at::Tensor> summed;
  for (size_t index = 0; index < aliases_.size(); ++index) {
    at::Tensor alias = aliases_[index].detach();
    at::Tensor& sum = alias.mutable_grad();
    if (of.accumulates(index)) {
      sum = kept_->take(ranks_of(index), part_.parameter_names[index]);
    }
    if (summing_ == Summing::at_end && gradients[index].defined()) {
      sum = sum.defined() ? sum.add_(gradients[index]) : gradients[index];
      gradients[index].reset();
    }
    summed.push_back(std::move(alias));
  }
  const auto& actions = orders_.program.actions[static_cast<size_t>(part_.rank)];
  const auto sums = make_sums(summed);
  recorder.start();
  for (const auto& sum : sums) {
    if (sum) sum->start_rest();
  }
  for (size_t at = 0; at < actions.size(); ++at) {
    if (actions[at].kind != plan::ActionKind::reduce_gradients) continue;
    sums[static_cast<size_t>(actions[at].index)]->wait();
    recorder.end(static_cast<int>(at), actions[at].kind);
  }
  for (size_t index = 0; index < summed.size(); ++index) {
    at::Tensor& sum = summed[index].mutable_grad();
    if (!sum.defined()) continue;
    gradients[index] = gradients[index].defined() ? gradients[index].add_(sum) : sum;
  }
}

}  // namespace rannc::runtime
