#include "runtime/reduce.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include <numeric>

#include "rannc/plan/reduction.h"
#include "rannc/util/error.h"

namespace rannc::runtime {
namespace {

comm::Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return comm::Element::float64;
    case at::kFloat:
      return comm::Element::float32;
    case at::kHalf:
      return comm::Element::float16;
    case at::kBFloat16:
      return comm::Element::bfloat16;
    default:
      throw Error(c10::str("gradients of dtype ", tensor.scalar_type(),
                           " cannot be summed over ranks.\n  Use float64, float32, float16 or "
                           "bfloat16 parameters, or give their stage one replica."));
  }
}

void sum_in_place(const at::Tensor& flat, comm::Communicator& comm, std::span<const int> ranks) {
  const at::Tensor numbers = flat.is_complex() ? at::view_as_real(flat) : flat;
  comm::all_reduce_sum(comm, numbers.data_ptr(), numbers.numel(), element_of(numbers), ranks,
                       {.what = "gradient reduction"});
}

/// Replaces the gradients of parameters of one dtype by their sums.
void sum_bucket(const std::vector<at::Tensor>& parameters, comm::Communicator& comm,
                std::span<const int> ranks) {
  if (parameters.size() == 1 && parameters[0].grad().is_contiguous()) {
    sum_in_place(parameters[0].grad(), comm, ranks);
    return;
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : parameters) parts.push_back(parameter.grad().flatten());
  const at::Tensor flat = at::cat(parts);
  parts.clear();
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  sum_in_place(flat, comm, ranks);
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
  }
}

/// For each parameter the number of ranks that have a gradient of it.
std::vector<int64_t> count_gradients(const std::vector<at::Tensor>& parameters, int64_t call,
                                     comm::Communicator& comm, std::span<const int> ranks) {
  std::vector<int64_t> counts;
  for (const at::Tensor& parameter : parameters) counts.push_back(parameter.grad().defined());
  counts.push_back(call);
  comm::all_reduce_sum(comm, counts.data(), static_cast<int64_t>(counts.size()),
                       comm::Element::int64, ranks, {.what = "gradient reduction"});
  // When every rank finds its own number to be the mean, all numbers are equal.
  const int64_t sum = counts.back();
  if (sum != call * static_cast<int64_t>(ranks.size())) {
    throw CommError(c10::str(
        "rank ", comm.rank(), " runs the backward of forward pass ", call,
        " while another rank runs that of another one.\n  Every rank must call backward, in the "
        "same order."));
  }
  counts.pop_back();
  return counts;
}

}  // namespace

void sum_gradients(const std::vector<at::Tensor>& parameters, int64_t call,
                   comm::Communicator& comm, std::span<const int> ranks) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> counts = count_gradients(parameters, call, comm, ranks);
  std::vector<at::Tensor> bucket;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (!bucket.empty()) sum_bucket(bucket, comm, ranks);
    bucket.clear();
    bytes = 0;
  };
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (counts[index] == 0) continue;
    const at::Tensor& parameter = parameters[index];
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    const auto size = static_cast<int64_t>(parameter.nbytes());
    const bool other_dtype = !bucket.empty() && bucket[0].dtype() != parameter.dtype();
    if (bytes + size > plan::kReductionBytes || other_dtype) flush();
    bucket.push_back(parameter);
    bytes += size;
  }
  flush();
}

void sum_scalars(std::vector<at::Tensor>& sums, comm::Communicator& comm, const char* what) {
  if (sums.empty() || comm.size() == 1) return;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& sum : sums) parts.push_back(sum.flatten().to(at::kCPU, at::kDouble));
  const at::Tensor flat = at::cat(parts);
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  comm::all_reduce_sum(comm, flat.data_ptr(), flat.numel(), comm::Element::float64, ranks,
                       {.what = what});
  int64_t begin = 0;
  for (at::Tensor& sum : sums) {
    const at::Tensor part = flat.narrow(0, begin, sum.numel()).view(sum.sizes());
    begin += sum.numel();
    sum = part.to(sum.options());
  }
}

}  // namespace rannc::runtime
