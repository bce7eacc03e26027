#include "runtime/group/group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "rannc/util/error.h"
#include "runtime/device_memory.h"

namespace rannc::runtime {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a node's backward needs.
struct Cut : torch::CustomClassHolder {
  std::shared_ptr<const Group> group;
  std::string node;
  int64_t dim = 0;
  std::shared_ptr<const Pieces> pieces;
};

/// A tensor without numbers whose dimensions lie in memory in the order of those of `like`: nodes
/// behind a collective may look at the memory that they get (as_strided, view). Where `like` has
/// one element of a dimension, that has no place in an order: then it is contiguous, which suits
/// all views.
at::Tensor empty_in_order_of(const at::Tensor& like, const std::vector<int64_t>& sizes) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const int64_t mine = like.size(static_cast<int64_t>(dim));
    if (mine == 1 && sizes[dim] > 1) return at::empty(sizes, like.options());
  }
  if (like.is_contiguous()) return at::empty(sizes, like.options());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const auto from = [&](size_t dim) {
      const auto at = static_cast<int64_t>(dim);
      return std::pair(-like.stride(at), like.size(at) == 1);
    };
    return from(a) < from(b);
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (const size_t dim : order | std::views::reverse) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  return at::empty_strided(sizes, strides, like.options());
}

at::Tensor part_of(const at::Tensor& whole, const Cut& cut) {
  const auto& stretches = (*cut.pieces)[static_cast<size_t>(cut.group->place())];
  std::vector<int64_t> sizes = whole.sizes().vec();
  int64_t& size = sizes[static_cast<size_t>(cut.dim)];
  size = 0;
  for (const auto& [begin, length] : stretches) size += length;
  const at::Tensor part = empty_in_order_of(whole, sizes);
  int64_t at = 0;
  for (const auto& [begin, length] : stretches) {
    part.narrow(cut.dim, at, length).copy_(whole.narrow(cut.dim, begin, length));
    at += length;
  }
  return part;
}

/// How long the part of each place is.
std::vector<int64_t> lengths_of(const Pieces& pieces) {
  std::vector<int64_t> lengths;
  for (const auto& stretches : pieces) {
    int64_t& length = lengths.emplace_back();
    for (const auto& [begin, size] : stretches) length += size;
  }
  return lengths;
}

at::Tensor whole_of(const at::Tensor& part, const Cut& cut) {
  const Pieces& pieces = *cut.pieces;
  const std::vector<int64_t> lengths = lengths_of(pieces);
  const int64_t whole = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t mine = part.size(cut.dim);
  RANNC_CHECK(mine == lengths[static_cast<size_t>(cut.group->place())], "a part of another size");
  std::vector<int64_t> numbers;
  for (int64_t length : lengths) numbers.push_back(part.numel() / mine * length);
  const std::vector<at::Tensor> parts = cut.group->gather(part, numbers, cut.node);
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[static_cast<size_t>(cut.dim)] = whole;
  const at::Tensor joined = empty_in_order_of(part, sizes);
  for (size_t place = 0; place < pieces.size(); ++place) {
    sizes[static_cast<size_t>(cut.dim)] = lengths[place];
    const at::Tensor from = parts[place].view(sizes);
    int64_t at = 0;
    for (const auto& [begin, size] : pieces[place]) {
      joined.narrow(cut.dim, begin, size).copy_(from.narrow(cut.dim, at, size));
      at += size;
    }
  }
  return joined;
}

/// The place's part of the sum of what all places have.
at::Tensor sum_part_of(const at::Tensor& whole, const Cut& cut) {
  std::vector<at::Tensor> parts;
  for (const auto& stretches : *cut.pieces) {
    std::vector<at::Tensor> side_by_side;
    for (const auto& [begin, size] : stretches) {
      side_by_side.push_back(whole.narrow(cut.dim, begin, size));
    }
    parts.push_back(side_by_side.size() == 1 ? side_by_side.front()
                                             : at::cat(side_by_side, cut.dim));
  }
  const at::Tensor mine = cut.group->sum_part(parts, cut.node);
  if (whole.is_contiguous()) return mine;
  return empty_in_order_of(whole, mine.sizes().vec()).copy_(mine);
}

const Cut& cut_of(AutogradContext* context) {
  return static_cast<const Cut&>(*context->saved_data["cut"].toCapsule());
}

struct Sum : torch::autograd::Function<Sum> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& mine,
                            const c10::intrusive_ptr<Cut>& cut) {
    const at::Tensor total = cut->group->sum(mine, cut->node);
    if (mine.is_contiguous()) return total;
    return empty_in_order_of(mine, mine.sizes().vec()).copy_(total);
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], {}};
  }
};

struct SumGradient : torch::autograd::Function<SumGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole,
                            const c10::intrusive_ptr<Cut>& cut) {
    context->saved_data["cut"] = c10::IValue::make_capsule(cut);
    return whole.view_as(whole);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Cut& cut = cut_of(context);
    return {cut.group->sum(grads[0], cut.node), {}};
  }
};

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part,
                            const c10::intrusive_ptr<Cut>& cut) {
    context->saved_data["cut"] = c10::IValue::make_capsule(cut);
    return whole_of(part, *cut);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {part_of(grads[0], cut_of(context)), {}};
  }
};

struct Slice : torch::autograd::Function<Slice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole,
                            const c10::intrusive_ptr<Cut>& cut) {
    context->saved_data["cut"] = c10::IValue::make_capsule(cut);
    return part_of(whole, *cut);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {whole_of(grads[0], cut_of(context)), {}};
  }
};

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole,
                            const c10::intrusive_ptr<Cut>& cut) {
    context->saved_data["cut"] = c10::IValue::make_capsule(cut);
    return sum_part_of(whole, *cut);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {whole_of(grads[0], cut_of(context)), {}};
  }
};

struct AllGatherSumGradient : torch::autograd::Function<AllGatherSumGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part,
                            const c10::intrusive_ptr<Cut>& cut) {
    context->saved_data["cut"] = c10::IValue::make_capsule(cut);
    return whole_of(part, *cut);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {sum_part_of(grads[0], cut_of(context)), {}};
  }
};

Pieces pieces_from(const std::vector<ir::AffineInt>& list) {
  Pieces pieces;
  for (size_t at = 0; at < list.size();) {
    auto& place = pieces.emplace_back();
    const int64_t count = list.at(at++).fixed;
    for (int64_t index = 0; index < count; ++index, at += 2) {
      place.emplace_back(list.at(at).fixed, list.at(at + 1).fixed);
    }
  }
  return pieces;
}

}  // namespace

Group::Group(std::shared_ptr<comm::Communicator> comm, std::shared_ptr<comm::Stream> stream,
             std::vector<int> ranks, int stage)
    : comm_(std::move(comm)),
      stream_(std::move(stream)),
      ranks_(std::move(ranks)),
      ascending_(ranks_),
      stage_(stage) {
  std::ranges::sort(ascending_);
  const auto found = std::ranges::find(ranks_, comm_->rank());
  RANNC_CHECK(found != ranks_.end(), "a group without this rank");
  place_ = static_cast<int>(found - ranks_.begin());
}

/// An error says which node of which group has waited.
void Group::wait(const comm::Handle& handle, const std::string& about) const {
  try {
    stream_->wait(*handle);
  } catch (const CommError& error) {
    throw CommError(c10::str(error.what(), "\n  It was in ", about, " of a model that the ranks ",
                             c10::Join(", ", ranks_), " compute together (tensor_parallel)."));
  }
}

at::Tensor Group::sum(const at::Tensor& mine, const std::string& about) const {
  const at::Tensor total = mine.clone(at::MemoryFormat::Contiguous).resolve_neg();
  const std::optional<comm::Element> element = element_of(total);
  RANNC_CHECK(element, "ranks cannot sum this dtype");
  const auto owner = std::make_shared<at::Tensor>(total);
  const comm::Purpose purpose{.what = kCollective, .stage = stage_};
  wait(total.is_cpu()  // beside a device, too
           ? comm::start_all_reduce_sum(*comm_, total.data_ptr(), total.numel(), *element,
                                        ascending_, purpose, owner)
           : comm_->start_sum(memory_of(total, *stream_), *element, ascending_, purpose, owner),
       about);
  return total;
}

at::Tensor Group::max(const at::Tensor& mine, const std::string& about) const {
  const std::vector<int64_t> sizes(ranks_.size(), mine.numel());
  at::Tensor greatest;
  for (const at::Tensor& each : gather(mine, sizes, about)) {
    greatest = greatest.defined() ? at::max(greatest, each) : each.clone();
  }
  return greatest.view(mine.sizes());
}

at::Tensor Group::row_of(const at::Tensor& all, size_t place, int64_t size) const {
  const auto found = std::ranges::find(ascending_, ranks_[place]);
  return all.select(0, found - ascending_.begin()).narrow(0, 0, size);
}

at::Tensor Group::sum_part(const std::vector<at::Tensor>& parts, const std::string& about) const {
  int64_t longest = 0;
  for (const at::Tensor& part : parts) longest = std::max(longest, part.numel());
  const auto places = static_cast<int64_t>(ranks_.size());
  const at::Tensor all = at::zeros({places, longest}, parts.front().options());
  for (size_t place = 0; place < parts.size(); ++place) {
    const at::Tensor& part = parts[place];
    row_of(all, place, part.numel()).view(part.sizes()).copy_(part);
  }
  const std::optional<comm::Element> element = element_of(all);
  RANNC_CHECK(element, "ranks cannot sum this dtype");
  const auto owner = std::make_shared<at::Tensor>(all);
  const comm::Purpose purpose{.what = kCollective, .stage = stage_};
  wait(all.is_cpu() ? comm::start_reduce_scatter_sum(*comm_, all.data_ptr(), all.numel(), *element,
                                                     ascending_, purpose, owner)
                    : comm_->start_reduce_scatter(memory_of(all, *stream_), *element, ascending_,
                                                  purpose, owner),
       about);
  const at::Tensor& mine = parts[static_cast<size_t>(place_)];
  return row_of(all, static_cast<size_t>(place_), mine.numel()).clone().view(mine.sizes());
}

std::vector<at::Tensor> Group::gather(const at::Tensor& mine, const std::vector<int64_t>& sizes,
                                      const std::string& about, const char* what) const {
  const int64_t longest = *std::ranges::max_element(sizes);
  const auto places = static_cast<int64_t>(ranks_.size());
  const at::Tensor all = at::zeros({places, longest}, mine.options());
  const auto me = static_cast<size_t>(place_);
  row_of(all, me, sizes[me]).copy_(mine.reshape({-1}));
  const at::Tensor bytes = all.view(at::kByte);
  const auto owner = std::make_shared<at::Tensor>(all);
  const comm::Purpose purpose{.what = what, .stage = stage_};
  constexpr auto kByte = comm::Element::uint8;
  wait(all.is_cpu()
           ? comm::start_all_gather_shards(*comm_, bytes.data_ptr(), bytes.numel(), kByte,
                                           ascending_, purpose, owner)
           : comm_->start_all_gather(memory_of(bytes, *stream_), kByte, ascending_, purpose, owner),
       about);
  std::vector<at::Tensor> parts;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    parts.push_back(row_of(all, place, sizes[place]));
  }
  return parts;
}

GroupCollective::GroupCollective(const ir::Graph& graph, ir::NodeId node,
                                 std::shared_ptr<const Group> group)
    : group_(std::move(group)) {
  static const std::unordered_map<std::string, Kind> kKinds{
      {"group::sum", Kind::sum},
      {"group::sum_gradient", Kind::sum_gradient},
      {"group::all_gather", Kind::all_gather},
      {"group::slice", Kind::slice},
      {"group::max", Kind::max},
      {"group::reduce_scatter", Kind::reduce_scatter},
      {"group::all_gather_sum_gradient", Kind::all_gather_sum_gradient}};
  const ir::Node& about = graph[node];
  RANNC_CHECK(group_ && kKinds.contains(about.op), about.name);
  kind_ = kKinds.at(about.op);
  node_ = c10::str("node '", about.name, "'");
  if (about.inputs.size() < 3) return;
  dim_ = std::get<ir::AffineInt>(about.inputs.at(1)).fixed;
  pieces_ = std::make_shared<Pieces>(
      pieces_from(std::get<std::vector<ir::AffineInt>>(about.inputs.at(2))));
}

void GroupCollective::call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results) const {
  auto cut = c10::make_intrusive<Cut>();
  cut->group = group_;
  cut->node = node_;
  cut->dim = dim_;
  cut->pieces = pieces_;
  results.clear();
  switch (kind_) {
    case Kind::sum:
      return results.push_back(Sum::apply(operands[0], cut));
    case Kind::sum_gradient:
      return results.push_back(SumGradient::apply(operands[0], cut));
    case Kind::all_gather:
      return results.push_back(AllGather::apply(operands[0], cut));
    case Kind::slice:
      return results.push_back(Slice::apply(operands[0], cut));
    case Kind::reduce_scatter:
      return results.push_back(ReduceScatter::apply(operands[0], cut));
    case Kind::all_gather_sum_gradient:
      return results.push_back(AllGatherSumGradient::apply(operands[0], cut));
    case Kind::max:
      const at::NoGradGuard no_grad;
      return results.push_back(group_->max(operands[0], node_));
  }
}

}  // namespace rannc::runtime
