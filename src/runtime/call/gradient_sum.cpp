#include "runtime/call/gradient_sum.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "rannc/ops/dtype.h"
#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

comm::Element element_of_gradient(const at::Tensor& tensor) {
  const std::optional<comm::Element> element = element_of(tensor);
  if (!element || !tensor.is_floating_point()) {
    throw Error(c10::str("gradients of dtype ", tensor.scalar_type(),
                         " cannot be summed over ranks.\n  Use float64, float32, float16 or "
                         "bfloat16 parameters, or give their stage one replica."));
  }
  return *element;
}

/// Complex numbers as pairs.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

constexpr comm::Purpose kPurpose{.what = "gradient reduction"};

}  // namespace

GradientSum::GradientSum(std::vector<at::Tensor> parameters,
                         const std::vector<plan::Bucket>& buckets, int64_t call,
                         comm::Communicator& comm, comm::Stream& stream, std::vector<int> ranks,
                         int64_t first_tag, int64_t count_tag, bool in_float32)
    : parameters_(std::move(parameters)),
      places_(parameters_.size()),
      call_(call),
      comm_(comm),
      stream_(stream),
      ranks_(std::move(ranks)),
      first_tag_(first_tag),
      count_tag_(count_tag),
      in_float32_(in_float32 && comm.is_in_order()) {
  for (const plan::Bucket& bucket : buckets) {
    int64_t begin = 0;
    for (size_t parameter : bucket.parameters) {
      places_[parameter].bucket = buckets_.size();
      places_[parameter].begin = begin;
      begin += parameters_[parameter].numel();
    }
    Bucket made;
    made.parameters = bucket.parameters;
    made.missing = bucket.parameters.size();
    made.size = bucket.sharded
                    ? plan::shard_size(begin, ranks_.size()) * static_cast<int64_t>(ranks_.size())
                    : begin;
    made.sharded = bucket.sharded;
    buckets_.push_back(std::move(made));
  }
}

void GradientSum::added(size_t parameter) {
  place(parameter);
  if (last_) complete(parameter);
}

void GradientSum::complete(size_t parameter) {
  Place& place = places_[parameter];
  if (place.complete) return;
  place.complete = true;
  if (--buckets_[place.bucket].missing > 0) return;
  finish(place.bucket);
  if (!completed_) return start(place.bucket);
  buckets_[place.bucket].ready = stream_.record();
  completed_();
}

/// Its array is whole.
void GradientSum::finish(size_t index) {
  Bucket& bucket = buckets_[index];
  for (size_t parameter : bucket.parameters) place(parameter);
  if (!bucket.numbers.defined()) bucket.numbers = parameters_[bucket.parameters[0]].mutable_grad();
  bucket.complete = true;
  const at::ScalarType dtype = bucket.numbers.scalar_type();
  if (in_float32_ && (dtype == at::kHalf || dtype == at::kBFloat16)) {
    narrow_summed();  // first what others have taken
    bucket.wide = bucket.numbers.to(at::kFloat);
  }
}

/// What is summed is given back to its array, and the memory of the sum is free.
void GradientSum::narrow_summed() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.wide.defined() || !bucket.sum || !bucket.sum->done()) continue;
    stream_.wait(*bucket.sum);
    bucket.numbers.copy_(bucket.wide);
    bucket.wide.reset();
  }
}

void GradientSum::issue(size_t bucket) {
  if (!buckets_[bucket].complete) start_rest();
  if (!buckets_[bucket].sum) start(bucket);
}

void GradientSum::place(size_t parameter) {
  Place& place = places_[parameter];
  Bucket& bucket = buckets_[place.bucket];
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const bool alone = bucket.parameters.size() == 1 && bucket.size == parameters_[parameter].numel();
  if (place.placed || (alone && gradient.defined() && is_plain(gradient))) return;
  if (!bucket.numbers.defined()) {
    bucket.numbers = at::empty({bucket.size}, parameters_[parameter].options());
    if (bucket.sharded) {  // less than a shard
      const int64_t last =
          places_[bucket.parameters.back()].begin + parameters_[bucket.parameters.back()].numel();
      bucket.numbers.narrow(0, last, bucket.size - last).zero_();
    }
  }
  place.placed = true;
  const at::Tensor part = part_of(parameter);
  if (!gradient.defined()) {
    part.zero_();
    return;
  }
  part.copy_(gradient);
  gradient = part;
}

at::Tensor GradientSum::part_of(size_t parameter) const {
  const Place& place = places_[parameter];
  const at::Tensor& like = parameters_[parameter];
  return buckets_[place.bucket].numbers.narrow(0, place.begin, like.numel()).view(like.sizes());
}

void GradientSum::start(size_t index) {
  Bucket& bucket = buckets_[index];
  const at::Tensor numbers = as_real(bucket.wide.defined() ? bucket.wide : bucket.numbers);
  const std::optional<int64_t> tag =
      first_tag_ < 0 ? std::nullopt : std::optional(first_tag_ + static_cast<int64_t>(index));
  comm::Buffer memory =
      bucket.ready
          ? comm::Buffer{numbers.data_ptr(), static_cast<int64_t>(numbers.nbytes()), bucket.ready}
          : memory_of(numbers, stream_);
  const auto owner = std::make_shared<at::Tensor>(numbers);
  const comm::Element element = element_of_gradient(numbers);
  bucket.sum = bucket.sharded
                   ? comm_.start_reduce_scatter(memory, element, ranks_, kPurpose, owner, tag)
                   : comm_.start_sum(memory, element, ranks_, kPurpose, owner, tag);
  if (++started_ == buckets_.size() && comm_.is_in_order()) start_counting_on_device();
}

void GradientSum::start_rest() {
  if (std::exchange(rest_started_, true)) return;
  if (!comm_.is_in_order()) start_counting();
  for (size_t parameter = 0; parameter < parameters_.size(); ++parameter) complete(parameter);
}

void GradientSum::start_counting() {
  counts_ = std::make_shared<std::vector<int64_t>>();
  for (const at::Tensor& parameter : parameters_) {
    counts_->push_back(parameter.mutable_grad().defined());  // grad() warns of aliases
  }
  counts_->push_back(call_);
  const std::optional<int64_t> tag = count_tag_ < 0 ? std::nullopt : std::optional(count_tag_);
  counting_ =
      comm::start_all_reduce_sum(comm_, counts_->data(), static_cast<int64_t>(counts_->size()),
                                 comm::Element::int64, ranks_, kPurpose, counts_, tag);
}

/// After the last of the buckets, which all ranks have at one place of the order. Nothing is copied
/// to the device: a copy would wait for it.
void GradientSum::start_counting_on_device() {
  device_counts_ = at::ones({static_cast<int64_t>(parameters_.size())},
                            buckets_.front().numbers.options().dtype(at::kLong));
  for (size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    if (parameters_[parameter].mutable_grad().defined()) continue;
    device_counts_.narrow(0, static_cast<int64_t>(parameter), 1).zero_();
  }
  counting_ = comm_.start_sum(memory_of(device_counts_, stream_), comm::Element::int64, ranks_,
                              kPurpose, std::make_shared<at::Tensor>(device_counts_));
}

bool GradientSum::has_gradients_of_all() const {
  return std::ranges::all_of(
      parameters_, [](const at::Tensor& parameter) { return parameter.mutable_grad().defined(); });
}

/// On a device they are read only where this rank lacks a gradient that others may have, and who
/// computes then waits for the device. Which call it is, all ranks have agreed on before.
void GradientSum::take_counts() {
  if (!comm_.is_in_order()) {
    counting_->wait();
    // When every rank finds its own number to be the mean, all numbers are equal.
    if (counts_->back() == call_ * static_cast<int64_t>(ranks_.size())) return;
    throw CommError(c10::str(
        "rank ", comm_.rank(), " runs the backward of forward pass ", call_,
        " while another rank runs that of another one.\n  Every rank must call backward, in the "
        "same order."));
  }
  if (counting_) stream_.wait(*counting_);  // else there is no bucket
  counts_ = std::make_shared<std::vector<int64_t>>(parameters_.size(), 1);
  if (has_gradients_of_all()) return;
  const at::Tensor counts = device_counts_.to(at::kCPU);
  std::ranges::copy_n(counts.const_data_ptr<int64_t>(), counts.numel(), counts_->begin());
}

bool GradientSum::started() const {
  return rest_started_ ||
         std::ranges::any_of(buckets_, [](const Bucket& bucket) { return bucket.sum != nullptr; });
}

void GradientSum::wait() {
  start_rest();
  take_counts();
  for (size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    RANNC_CHECK(bucket.sum != nullptr, "a bucket that was never issued");
    stream_.wait(*bucket.sum);
    if (bucket.wide.defined()) bucket.numbers.copy_(std::exchange(bucket.wide, at::Tensor()));
    if (bucket.sharded) keep_shard(index);
  }
  for (size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    at::Tensor& gradient = parameters_[parameter].mutable_grad();
    if ((*counts_)[parameter] == 0) {
      gradient.reset();
    } else if (!gradient.defined()) {
      gradient = part_of(parameter);
    }
  }
}

/// What other ranks step is no sum here, and must not be taken for one.
void GradientSum::keep_shard(size_t index) {
  const Bucket& bucket = buckets_[index];
  const at::Tensor flat = bucket.numbers.view({-1});
  const auto count = static_cast<int64_t>(ranks_.size());
  const int64_t place = std::ranges::find(ranks_, comm_.rank()) - ranks_.begin();
  const int64_t share = bucket.size / count;
  flat.narrow(0, 0, place * share).zero_();
  flat.narrow(0, (place + 1) * share, (count - 1 - place) * share).zero_();
}

void sum_gradients(const std::vector<at::Tensor>& parameters, int64_t call,
                   comm::Communicator& comm, comm::Stream& stream, std::span<const int> ranks,
                   bool in_float32) {
  std::vector<plan::Gradient> gradients;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(
        {ops::from_torch(parameter.scalar_type()), static_cast<int64_t>(parameter.nbytes())});
  }
  GradientSum(parameters, plan::buckets(gradients), call, comm, stream,
              {ranks.begin(), ranks.end()}, /*first_tag=*/-1, /*count_tag=*/-1, in_float32)
      .wait();
}

namespace {

ScalarSum::Part start_part(const std::vector<at::Tensor>& sums, comm::Communicator& comm,
                           comm::Stream& stream, const char* what) {
  if (sums.empty()) return {};
  std::vector<at::Tensor> parts;
  for (const at::Tensor& sum : sums) parts.push_back(as_real(sum).flatten().to(at::kDouble));
  const at::Tensor flat = at::cat(parts);
  const auto owner = std::make_shared<at::Tensor>(flat);
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const comm::Buffer memory = memory_of(flat, stream);
  if (!flat.is_cpu()) {
    return {flat, comm.start_sum(memory, comm::Element::float64, ranks, {.what = what}, owner)};
  }
  // Also beside an accelerator, of which the communicator may be.
  if (memory.ready) memory.ready->wait();
  return {flat, comm::start_all_reduce_sum(comm, memory.data, flat.numel(), comm::Element::float64,
                                           ranks, {.what = what}, owner)};
}

}  // namespace

ScalarSum start_scalar_sum(const std::vector<at::Tensor>& sums, comm::Communicator& comm,
                           comm::Stream& stream, const char* what) {
  if (sums.empty() || comm.size() == 1) return {};
  std::vector<at::Tensor> of_host;
  std::vector<at::Tensor> of_device;
  for (const at::Tensor& sum : sums) (sum.is_cpu() ? of_host : of_device).push_back(sum);
  return {start_part(of_device, comm, stream, what), start_part(of_host, comm, stream, what)};
}

void finish_scalar_sum(std::vector<at::Tensor>& sums, const ScalarSum& started,
                       comm::Stream& stream) {
  for (const ScalarSum::Part* part : {&started.of_device, &started.of_host}) {
    if (!part->handle) continue;
    stream.wait(*part->handle);
    int64_t begin = 0;
    for (at::Tensor& sum : sums) {
      if (sum.is_cpu() != part->flat.is_cpu()) continue;
      const at::Tensor real = as_real(sum);
      const at::Tensor numbers = part->flat.narrow(0, begin, real.numel()).view(real.sizes());
      begin += real.numel();
      sum = sum.is_complex() ? at::view_as_complex(numbers.clone()).to(sum.options())
                             : numbers.to(sum.options());
    }
  }
}

void sum_scalars(std::vector<at::Tensor>& sums, comm::Communicator& comm, comm::Stream& stream,
                 const char* what) {
  finish_scalar_sum(sums, start_scalar_sum(sums, comm, stream, what), stream);
}

}  // namespace rannc::runtime
