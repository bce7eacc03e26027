#include "runtime/stage/parameter_gathers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <utility>

#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

/// Lets what the backward of a node needs be whole before it runs.
class NeededBack final : public torch::autograd::FunctionPreHook {
 public:
  NeededBack(std::shared_ptr<ParameterGathers> gathers, size_t node)
      : gathers_(std::move(gathers)), node_(node) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    gathers_->need(node_);
    return gradients;
  }

 private:
  const std::shared_ptr<ParameterGathers> gathers_;
  const size_t node_;
};

/// Of this shape, without memory.
at::Tensor without_memory(const at::Tensor& like, std::vector<int64_t> sizes) {
  at::Tensor made = at::empty({0}, like.options());
  made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return made;
}

/// `tensor` and all its views have the memory of `other`, which has none then. No write, for
/// autograd: the numbers are those that it has seen before.
void take_memory(const at::Tensor& tensor, const at::Tensor& other) {
  c10::StorageImpl& to = *tensor.storage().unsafeGetStorageImpl();
  c10::StorageImpl& from = *other.storage().unsafeGetStorageImpl();
  const size_t bytes = from.nbytes();
  to.set_data_ptr_noswap(from.set_data_ptr(c10::DataPtr(nullptr, from.device())));
  to.set_nbytes(bytes);
  from.set_nbytes(0);
}

void free_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(0);
}

}  // namespace

ParameterGathers::ParameterGathers(const SharedParameters& shared, const Sharing& sharing,
                                   int stage, std::vector<at::Tensor> parts,
                                   std::vector<std::string> names,
                                   std::shared_ptr<comm::Communicator> comm,
                                   std::shared_ptr<comm::Stream> stream)
    : shared_(shared),
      sharing_(sharing),
      stage_(stage),
      parts_(std::move(parts)),
      names_(std::move(names)),
      comm_(std::move(comm)),
      stream_(std::move(stream)),
      gradients_(parts_.size()),
      sums_(parts_.size()),
      found_(parts_.size()) {
  for (size_t index = 0; index < parts_.size(); ++index) {
    std::vector<int64_t> sizes = parts_[index].sizes().vec();
    sizes.front() = shared_.parameters[index].rows;
    wholes_.emplace_back().tensor = without_memory(parts_[index], std::move(sizes));
    versions_.push_back(parts_[index].is_inference() ? 0 : parts_[index]._version());
  }
}

void ParameterGathers::begin(bool backward) {
  if (backward) check_versions();
  backward_ = backward;
  at_ = 0;
  issued_ = backward ? 0 : shared_.scattered.size();
}

void ParameterGathers::end() {
  while (at_ < steps().size()) enter(at_);
  for (size_t parameter = 0; parameter < wholes_.size(); ++parameter) let_go(parameter);
  while (issued_ < shared_.scattered.size()) scatter(shared_.scattered[issued_++]);
  finish_scatters({});
}

void ParameterGathers::need(size_t node) {
  const SharedParameters::Buckets& wanted = shared_.needed[node];
  if (wanted.empty()) return;
  while (at_ == 0 || !std::ranges::includes(steps()[at_ - 1], wanted)) {
    RANNC_CHECK(at_ < steps().size(), c10::str("node ", node, " of stage ", stage_,
                                               " needs shared parameters in another order"));
    enter(at_);
  }
}

/// What it needs is whole, and what the next step needs is on its way.
void ParameterGathers::enter(size_t step) {
  const SharedParameters::Buckets none;
  const SharedParameters::Buckets& now = steps()[step];
  const SharedParameters::Buckets& next = step + 1 < steps().size() ? steps()[step + 1] : none;
  at_ = step + 1;
  for (size_t bucket = 0; bucket < shared_.buckets.size(); ++bucket) {
    if (std::ranges::binary_search(now, bucket) || std::ranges::binary_search(next, bucket)) {
      continue;
    }
    for (size_t parameter : shared_.buckets[bucket]) let_go(parameter);
  }
  for (const SharedParameters::Buckets* buckets : {&now, &next}) {
    for (size_t bucket : *buckets) {
      for (size_t parameter : shared_.buckets[bucket]) start_gather(parameter);
    }
  }
  for (size_t bucket : now) {
    for (size_t parameter : shared_.buckets[bucket]) finish_gather(parameter);
  }
}

void ParameterGathers::start_gather(size_t parameter) {
  Whole& whole = wholes_[parameter];
  if (whole.there || whole.gather) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& part = parts_[parameter];
  const int64_t share = shared_.parameters[parameter].share;
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes.front() = share * static_cast<int64_t>(sharing_.ranks.size());
  whole.arriving = at::empty(sizes, part.options());
  whole.arriving.narrow(0, share * static_cast<int64_t>(sharing_.place), part.size(0)).copy_(part);
  const at::Tensor bytes = whole.arriving.view({-1}).view(at::kByte);
  whole.gather = comm_->start_all_gather(memory_of(bytes, *stream_), comm::Element::uint8,
                                         sharing_.ranks, {.what = kGather, .stage = stage_},
                                         std::make_shared<at::Tensor>(whole.arriving));
}

void ParameterGathers::finish_gather(size_t parameter) {
  Whole& whole = wholes_[parameter];
  if (whole.there) return;
  stream_->wait(*whole.gather);
  whole.gather.reset();
  take_memory(whole.tensor, whole.arriving);
  whole.arriving.reset();
  whole.there = true;
}

void ParameterGathers::let_go(size_t parameter) {
  Whole& whole = wholes_[parameter];
  if (whole.gather) finish_gather(parameter);
  if (!std::exchange(whole.there, false)) return;
  free_memory(whole.tensor);
}

void ParameterGathers::follow(size_t node, std::span<at::Tensor> results) {
  if (!shared_.needed_back[node] || !at::GradMode::is_enabled()) return;
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.requires_grad() || !result.grad_fn()) continue;
    result.grad_fn()->add_pre_hook(std::make_unique<NeededBack>(shared_from_this(), node));
  }
}

void ParameterGathers::add(size_t parameter, at::Tensor gradient) {
  RANNC_CHECK(!gradients_[parameter].defined(), names_[parameter]);
  gradients_[parameter] = std::move(gradient);
  ++found_[parameter];
  while (issued_ < shared_.scattered.size() && gradients_[shared_.scattered[issued_]].defined()) {
    scatter(shared_.scattered[issued_++]);
  }
}

/// Each rank gets its part of the sum; one without a gradient gives zeros.
void ParameterGathers::scatter(size_t index) {
  const at::NoGradGuard no_grad;
  const SharedParameters::Parameter& parameter = shared_.parameters[index];
  finish_scatters(parameter.bucket);
  at::Tensor numbers = std::exchange(gradients_[index], at::Tensor());
  const int64_t rows = parameter.share * static_cast<int64_t>(sharing_.ranks.size());
  if (!numbers.defined() || numbers.is_sparse() || rows != parameter.rows || !is_plain(numbers)) {
    std::vector<int64_t> sizes = parts_[index].sizes().vec();
    sizes.front() = rows;
    const at::Tensor gradient = std::exchange(numbers, at::zeros(sizes, parts_[index].options()));
    if (gradient.defined()) numbers.narrow(0, 0, parameter.rows).add_(gradient);
  }
  const std::optional<comm::Element> element = element_of(numbers);
  RANNC_CHECK(element, "ranks cannot sum this dtype");
  const auto owner = std::make_shared<at::Tensor>(numbers);
  comm::Handle handle =
      comm_->start_reduce_scatter(memory_of(numbers, *stream_), *element, sharing_.ranks,
                                  {.what = kScatter, .stage = stage_}, owner);
  scatters_.push_back({index, std::move(numbers), std::move(handle)});
}

/// Those that are under way, but of one bucket.
void ParameterGathers::finish_scatters(std::optional<size_t> but_of_bucket) {
  const at::NoGradGuard no_grad;
  std::vector<Scatter> left;
  for (Scatter& each : scatters_) {
    const SharedParameters::Parameter& parameter = shared_.parameters[each.parameter];
    if (parameter.bucket == but_of_bucket) {
      left.push_back(std::move(each));
      continue;
    }
    stream_->wait(*each.handle);
    const at::Tensor mine = each.numbers.narrow(
        0, parameter.share * static_cast<int64_t>(sharing_.place), parts_[each.parameter].size(0));
    at::Tensor& sum = sums_[each.parameter];
    sum = sum.defined() ? sum.add_(mine) : mine.clone();
  }
  scatters_ = std::move(left);
}

void ParameterGathers::agree() {
  const auto counts = std::make_shared<std::vector<int64_t>>(found_);
  const comm::Handle handle = comm::start_all_reduce_sum(
      *comm_, counts->data(), static_cast<int64_t>(counts->size()), comm::Element::int64,
      sharing_.ranks, {.what = kScatter, .stage = stage_}, counts);
  handle->wait();
  for (size_t index = 0; index < sums_.size(); ++index) {
    if ((*counts)[index] == 0) sums_[index].reset();
  }
}

void ParameterGathers::begin_with(size_t parameter, at::Tensor kept) {
  if (kept.defined()) ++found_[parameter];
  sums_[parameter] = std::move(kept);
}

void ParameterGathers::reset() {
  std::ranges::fill(sums_, at::Tensor());
  std::ranges::fill(found_, 0);
}

/// As autograd says of what it has saved.
void ParameterGathers::check_versions() const {
  for (size_t index = 0; index < parts_.size(); ++index) {
    if (parts_[index].is_inference() || versions_[index] == parts_[index]._version()) continue;
    throw Error(c10::str("'", names_[index], "' was modified by an in-place operation after the ",
                         "forward pass, whose backward gathers it again (zero=\"parameters\").\n",
                         "  Write to it after backward(), or to a copy."));
  }
}

}  // namespace rannc::runtime
