#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>

#include "ir/sharding/factor_call.h"

namespace rannc::ir::sharding {
namespace {

void pointwise(FactorCall& call) {
  for (const ValueId output : call.call().node().outputs) {
    if (!output.valid()) continue;
    for (const ValueId operand : call.call().operands()) call.broadcast(operand, output);
  }
}

/// Of the first operand; what else there is are shapes or a value to copy from.
void like_first(FactorCall& call) { call.broadcast(call.call().tensor(0), call.result()); }

void reshape(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const ValueId to = call.result();
  std::vector<ContentId> before;
  std::vector<ContentId> behind;
  for (int dim = 0; dim < call.rank(from); ++dim) before.push_back(call.content(from, dim));
  for (int dim = 0; dim < call.rank(to); ++dim) behind.push_back(call.content(to, dim));
  if (std::ranges::any_of(before, [&](auto id) { return call.contents().size(id) == 0; })) return;
  const Contents::Agreed agreed = call.contents().align(before, behind);
  for (size_t dim = 0; dim < agreed.a; ++dim) call.passes(from, static_cast<int>(dim));
  for (size_t dim = 0; dim < agreed.b; ++dim) call.passes(to, static_cast<int>(dim));
}

void permute(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const std::vector<int> order = call.call().dimensions(1, call.rank(from), 0);
  for (int dim = 0; dim < call.rank(from); ++dim) {
    call.same(from, order[static_cast<size_t>(dim)], call.result(), dim);
  }
}

void transpose(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const int rank = call.rank(from);
  std::vector<int> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  if (rank >= 2) {
    const bool named = call.call().node().inputs.size() >= 3;
    const int a = named ? call.call().dimension(1, rank, 0) : rank - 2;
    const int b = named ? call.call().dimension(2, rank, 0) : rank - 1;
    std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  }
  for (int dim = 0; dim < rank; ++dim) {
    call.same(from, order[static_cast<size_t>(dim)], call.result(), dim);
  }
}

void expand(FactorCall& call) { call.broadcast(call.call().tensor(0), call.result()); }

void select(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const int gone = call.call().dimension(1, call.rank(from), 0);
  call.whole(from, gone);
  for (int dim = 0; dim < call.rank(from); ++dim) {
    if (dim != gone) call.same(from, dim, call.result(), dim - (dim > gone ? 1 : 0));
  }
}

void unbind(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const int gone = call.call().dimension(1, call.rank(from), 0);
  call.whole(from, gone);
  for (const ValueId output : call.call().node().outputs) {
    for (int dim = 0; output.valid() && dim < call.rank(from); ++dim) {
      if (dim != gone) call.same(from, dim, output, dim - (dim > gone ? 1 : 0));
    }
  }
}

/// A slice of all is none. Tiles are joined by Analysis, others need all.
void slice(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const int cut = call.call().dimension(1, call.rank(from), 0);
  const bool all = call.size(from, cut) == call.size(call.result(), cut);
  call.same_but(from, call.result(), all ? std::set<int>{} : std::set<int>{cut});
}

void split(FactorCall& call) {
  const ValueId from = call.call().tensor(0);
  const int cut = call.call().dimension(2, call.rank(from), 0);
  std::vector<ContentId> segments;
  for (const ValueId output : call.call().node().outputs) {
    if (!output.valid()) return;
    call.same_but(from, output, {cut});
    call.passes(output, cut);
    segments.push_back(call.content(output, cut));
  }
  call.contents().unify(call.content(from, cut), call.contents().sum(segments));
  call.passes(from, cut);
}

void cat(FactorCall& call) {
  const std::vector<ValueId> operands = call.call().tensors(0);
  const ValueId to = call.result();
  const int along = call.call().dimension(1, call.rank(to), 0);
  std::vector<ContentId> segments;
  for (const ValueId operand : operands) {
    if (call.rank(operand) != call.rank(to)) continue;  // an empty one of one dimension
    call.same_but(operand, to, {along});
    call.passes(operand, along);
    segments.push_back(call.content(operand, along));
  }
  call.contents().unify(call.content(to, along), call.contents().sum(segments));
  call.passes(to, along);
}

void stack(FactorCall& call) {
  const ValueId to = call.result();
  const int made = call.call().dimension(1, call.rank(to), 0);
  call.whole(to, made);
  for (const ValueId operand : call.call().tensors(0)) {
    for (int dim = 0; dim < call.rank(operand); ++dim) {
      call.same(operand, dim, to, dim + (dim >= made ? 1 : 0));
    }
  }
}

/// Each element several times, one behind the other: the copies change fastest.
void repeat_interleave(FactorCall& call) {
  const auto* times = std::get_if<AffineInt>(&call.call().argument(1));
  const ValueId from = call.call().tensor(0);
  if (times == nullptr || call.call().is_none(2)) return;
  const int along = call.call().dimension(2, call.rank(from), 0);
  call.same_but(from, call.result(), {along});
  Contents& contents = call.contents();
  const ContentId copies = contents.fresh(times->at(kRows));
  contents.unify(call.content(call.result(), along),
                 contents.product({call.content(from, along), copies}));
  call.passes(from, along);
  call.passes(call.result(), along);
}

void along_dimension(FactorCall& call, size_t argument) {
  const ValueId from = call.call().tensor(0);
  const std::vector<int> gone = call.call().dimensions(argument, call.rank(from), -1);
  for (const ValueId output : call.call().node().outputs) {
    if (output.valid()) call.same_but(from, output, std::set<int>(gone.begin(), gone.end()));
  }
}
void softmax(FactorCall& call) { along_dimension(call, 1); }

void reduce_by(FactorCall& call, Role role) {
  const ValueId from = call.call().tensor(0);
  const int rank = call.rank(from);
  const std::string_view op = call.call().node().op;
  const bool takes_dtype = op == "aten::sum" || op == "aten::mean";  // where others have dimensions
  const bool named = !takes_dtype && !call.call().integers(1).empty();
  std::vector<int> gone;
  if (named) {
    gone = call.call().dimensions(1, rank, 0);
  } else {
    gone.resize(static_cast<size_t>(rank));
    std::iota(gone.begin(), gone.end(), 0);
  }
  const bool keeps = named && call.call().boolean(2, false);
  const std::set<int> over(gone.begin(), gone.end());
  int at = 0;
  for (int dim = 0; dim < rank; ++dim) {
    if (over.contains(dim)) {
      call.is(role, from, dim);
      at += keeps ? 1 : 0;
    } else {
      call.same(from, dim, call.result(), at++);
    }
  }
}
void sum(FactorCall& call) { reduce_by(call, Role::reduced); }
void reduce(FactorCall& call) { reduce_by(call, Role::whole); }

/// [.., K] x [N, K] (+ [N])
void linear(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  const ValueId weight = call.call().tensor(1);
  const ValueId bias = call.call().tensor(2);
  const ValueId y = call.result();
  if (call.rank(weight) != 2) return;
  const int last = call.rank(x) - 1;
  for (int dim = 0; dim < last; ++dim) call.same(x, dim, y, dim);
  call.same(x, last, weight, 1);
  call.is(Role::reduced, x, last);
  call.same(weight, 0, y, last);
  if (bias.valid()) call.same(bias, 0, y, last);
}

void product(FactorCall& call, ValueId a, ValueId b, ValueId y) {
  const int rank_a = call.rank(a);
  const int rank_b = call.rank(b);
  if (rank_a == 0 || rank_b == 0) return;
  const int inner_b = rank_b == 1 ? 0 : rank_b - 2;
  call.same(a, rank_a - 1, b, inner_b);
  call.is(Role::reduced, a, rank_a - 1);
  int from_right = call.rank(y) - 1;
  if (rank_b > 1) call.same(b, rank_b - 1, y, from_right--);
  if (rank_a > 1) call.same(a, rank_a - 2, y, from_right--);
  const auto batches = [&](ValueId operand, int rank) {
    for (int dim = rank - 3, to = from_right; dim >= 0 && to >= 0; --dim, --to) {
      if (call.size(operand, dim) != 1) call.same(operand, dim, y, to);
    }
  };
  batches(a, rank_a);
  batches(b, rank_b);
}

void matmul(FactorCall& call) {
  product(call, call.call().tensor(0), call.call().tensor(1), call.result());
}

/// bias + a @ b, both with factor 1: the bias of a sum is added once, behind it.
void addmm(FactorCall& call) {
  if (call.call().base() == "addmv") return;
  const auto is_one = [&](size_t index) {
    const Argument& value = call.call().argument(index);
    if (const auto* number = std::get_if<AffineInt>(&value)) return *number == AffineInt{1, 0};
    if (const auto* number = std::get_if<double>(&value)) return *number == 1.0;
    return std::holds_alternative<None>(value);
  };
  if (!is_one(3) || !is_one(4)) return;
  product(call, call.call().tensor(1), call.call().tensor(2), call.result());
  call.broadcast(call.call().tensor(0), call.result());
}

void embedding(FactorCall& call) {
  const ValueId weight = call.call().tensor(0);
  const ValueId index = call.call().tensor(1);
  const ValueId y = call.result();
  for (int dim = 0; dim < call.rank(index); ++dim) call.same(index, dim, y, dim);
  call.same(weight, 1, y, call.rank(y) - 1);
  const bool by_frequency = call.call().boolean(3, false) || call.call().boolean(4, false);
  call.is(by_frequency ? Role::whole : Role::exchange, weight, 0);
}

void layer_norm(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  const auto normal = static_cast<int>(call.call().integers(1).size());
  for (int dim = 0; dim < call.rank(x) - normal; ++dim) call.same(x, dim, call.result(), dim);
  for (int dim = call.rank(x) - normal; dim < call.rank(x); ++dim) {
    call.same(x, dim, call.result(), dim);
    call.whole(x, dim);
    for (const size_t index : {size_t{2}, size_t{3}}) {
      const ValueId state = call.call().tensor(index);
      if (state.valid()) call.same(state, dim - (call.rank(x) - normal), x, dim);
    }
  }
}

void attention(FactorCall& call) {
  const ValueId query = call.call().tensor(0);
  const ValueId key = call.call().tensor(1);
  const ValueId value = call.call().tensor(2);
  const ValueId mask = call.call().tensor(3);
  const ValueId y = call.result();
  const int rank = call.rank(query);
  if (rank < 3 || call.rank(key) != rank || call.rank(value) != rank) return;
  const bool causal = call.call().boolean(5, false);
  Contents& contents = call.contents();
  for (int dim = 0; dim < rank - 2; ++dim) {
    if (call.size(query, dim) == call.size(y, dim)) call.same(query, dim, y, dim);
    for (const ValueId other : {key, value}) {
      const int64_t here = call.size(other, dim);
      if (here == 1 && call.size(y, dim) != 1) return call.all_whole();
      if (here == call.size(y, dim)) {
        call.same(other, dim, y, dim);
        continue;
      }
      // Several heads of queries for each of keys, side by side (enable_gqa).
      const ContentId heads = call.content(y, dim);
      if (call.size(y, dim) % here != 0) return call.all_whole();
      contents.unify(heads, contents.product({call.content(other, dim),
                                              contents.fresh(call.size(y, dim) / here)}));
      call.passes(other, dim);
    }
  }
  call.same(query, rank - 2, y, rank - 2);
  if (causal) call.whole(query, rank - 2);
  call.same(key, rank - 2, value, rank - 2);
  call.whole(key, rank - 2);
  call.same(query, rank - 1, key, rank - 1);
  call.whole(query, rank - 1);
  call.same(value, rank - 1, y, rank - 1);
  if (!mask.valid()) return;
  const int shift = rank - call.rank(mask);
  for (int dim = 0; dim < call.rank(mask); ++dim) {
    if (call.size(mask, dim) == 1) continue;
    if (shift + dim == rank - 1) {
      call.same(mask, dim, key, rank - 2);
    } else {
      call.same(mask, dim, y, shift + dim);
    }
  }
}

void convolution(FactorCall& call) {
  const std::string base(call.call().base());
  const bool general = base == "convolution" || base == "_convolution";
  const bool transposed =
      base.starts_with("conv_transpose") || (general && call.call().boolean(6, false));
  const ValueId x = call.call().tensor(0);
  const ValueId weight = call.call().tensor(1);
  const ValueId bias = call.call().tensor(2);
  const ValueId y = call.result();
  if (transposed || call.rank(x) != call.rank(weight)) return;
  const int64_t groups = call.call().integer(general ? 8 : 6, 1).fixed;
  call.same(x, 0, y, 0);
  Contents& contents = call.contents();
  if (groups == 1) {
    call.same(x, 1, weight, 1);
    call.is(Role::reduced, x, 1);
  } else {
    const ContentId group = contents.fresh(groups);
    const auto grouped = [&](ContentId channels) {
      const int64_t inner = contents.size(channels) / groups;
      const ContentId part = contents.fresh(inner);
      contents.unify(channels, contents.product({group, part}));
      return part;
    };
    const ContentId inner = grouped(call.content(x, 1));
    grouped(call.content(weight, 0));
    call.passes(x, 1);
    if (call.size(weight, 1) != 1) {
      contents.unify(inner, call.content(weight, 1));
      call.is(Role::reduced, weight, 1);
    }
  }
  call.same(weight, 0, y, 1);
  if (bias.valid()) call.same(bias, 0, y, 1);
}

/// Samples and channels are apart, places are not.
void channels(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  if (call.rank(x) < 2 || call.rank(call.result()) < 2) return;
  for (const ValueId output : call.call().node().outputs) {
    if (output.valid() && call.rank(output) == call.rank(x)) {
      call.same(x, 0, output, 0);
      call.same(x, 1, output, 1);
    }
  }
}

void batch_norm(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  call.same_but(x, call.result(), {});
  for (int dim = 2; dim < call.rank(x); ++dim) call.whole(x, dim);
  for (const size_t index : {1, 2, 3, 4}) {
    const ValueId state = call.call().tensor(index);
    if (state.valid()) call.same(state, 0, x, 1);
  }
}

void pad(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  const std::vector<AffineInt> widths = call.call().integers(1);
  std::set<int> padded;
  for (size_t pair = 0; pair < widths.size() / 2; ++pair) {
    const bool none = widths[2 * pair] == AffineInt{} && widths[2 * pair + 1] == AffineInt{};
    if (!none) padded.insert(call.rank(x) - 1 - static_cast<int>(pair));
  }
  call.same_but(x, call.result(), padded);
}

void triangle(FactorCall& call) {
  const ValueId x = call.call().tensor(0);
  const int rank = call.rank(x);
  call.same_but(x, call.result(), {rank - 2, rank - 1});
}

/// [N, classes] and N targets: three numbers for each row of what is cut by classes.
void class_loss(FactorCall& call) {
  const ValueId scores = call.call().tensor(0);
  const ValueId target = call.call().tensor(1);
  const bool plain = call.rank(scores) == 2 && call.rank(target) == 1 && call.call().is_none(2) &&
                     call.call().base() == "cross_entropy_loss";
  const auto* smoothing = std::get_if<double>(&call.call().argument(5));
  if (!plain || (smoothing != nullptr && *smoothing != 0.0)) return;
  call.is(Role::exchange, scores, 1);
}

void einsum(FactorCall& call) {
  const auto* text = std::get_if<std::string>(&call.call().argument(0));
  if (text == nullptr) return;
  std::string equation = *text;
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  if (arrow == std::string::npos || equation.find('.') != std::string::npos) return;
  const std::string to = equation.substr(arrow + 2);
  std::map<char, std::pair<ValueId, int>> first;
  for (size_t dim = 0; dim < to.size(); ++dim) {
    first[to[dim]] = {call.result(), static_cast<int>(dim)};
  }
  size_t begin = 0;
  for (const ValueId operand : call.call().tensors(1)) {
    const size_t end = std::min(equation.find(',', begin), arrow);
    const std::string letters = equation.substr(begin, end - begin);
    begin = end + 1;
    for (size_t dim = 0; dim < letters.size(); ++dim) {
      const auto at = static_cast<int>(dim);
      const auto [found, made] = first.try_emplace(letters[dim], operand, at);
      if (!made) call.same(operand, at, found->second.first, found->second.second);
      if (to.find(letters[dim]) == std::string::npos) call.is(Role::reduced, operand, at);
    }
  }
}

struct Family {
  FactorRule rule;
  std::vector<std::string_view> operators;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all{
      {pointwise, {"abs",         "add",          "addcdiv",     "addcmul",    "bitwise_and",
                   "bitwise_not", "bitwise_or",   "ceil",        "celu",       "clamp",
                   "clamp_max",   "clamp_min",    "clip",        "copy",       "cos",
                   "div",         "divide",       "dropout",     "elu",        "eq",
                   "erf",         "exp",          "exp2",        "expm1",      "feature_dropout",
                   "floor",       "floor_divide", "fmod",        "ge",         "gelu",
                   "greater",     "gt",           "hardsigmoid", "hardswish",  "hardtanh",
                   "isfinite",    "isinf",        "isnan",       "le",         "leaky_relu",
                   "lerp",        "less",         "log",         "log1p",      "log2",
                   "log_sigmoid", "logical_and",  "logical_not", "logical_or", "lt",
                   "masked_fill", "maximum",      "minimum",     "mish",       "mul",
                   "multiply",    "nan_to_num",   "ne",          "neg",        "not_equal",
                   "pow",         "reciprocal",   "relu",        "relu6",      "remainder",
                   "round",       "rsqrt",        "rsub",        "selu",       "sgn",
                   "sigmoid",     "sign",         "silu",        "sin",        "sinh",
                   "softplus",    "sqrt",         "square",      "sub",        "tan",
                   "tanh",        "threshold",    "true_divide", "trunc",      "where",
                   "xlogy",       "__and__",      "__or__",      "__xor__",    "fill",
                   "zero"}},
      {like_first,
       {"_to_copy", "alias", "clone", "contiguous", "detach", "to", "type_as", "lift_fresh",
        "empty_like", "ones_like", "zeros_like", "full_like"}},
      {reshape,
       {"_reshape_alias", "_unsafe_view", "flatten", "reshape", "reshape_as", "squeeze",
        "unflatten", "unsqueeze", "view", "view_as"}},
      {permute, {"permute"}},
      {transpose, {"mT", "t", "transpose", "swapaxes", "swapdims"}},
      {expand, {"broadcast_to", "expand", "expand_as"}},
      {select, {"select"}},
      {unbind, {"unbind"}},
      {slice, {"slice"}},
      {split, {"chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split"}},
      {cat, {"cat", "concat", "concatenate"}},
      {stack, {"stack"}},
      {repeat_interleave, {"repeat_interleave"}},
      {softmax, {"_log_softmax", "_safe_softmax", "_softmax", "log_softmax", "softmax", "cumsum"}},
      {sum, {"sum"}},
      {reduce, {"amax", "amin", "mean", "logsumexp", "argmax", "all", "any"}},
      {linear, {"linear"}},
      {matmul, {"bmm", "matmul", "mm", "mv"}},
      {addmm, {"addmm", "baddbmm"}},
      {einsum, {"einsum"}},
      {embedding, {"embedding"}},
      {layer_norm, {"layer_norm", "native_layer_norm", "rms_norm"}},
      {attention, {"scaled_dot_product_attention"}},
      {convolution, {"_convolution", "conv1d", "conv2d", "conv3d", "convolution"}},
      {channels,
       {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
        "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool2d_with_indices",
        "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"}},
      {batch_norm, {"batch_norm"}},
      {pad, {"constant_pad_nd", "pad"}},
      {triangle, {"tril", "triu"}},
      {class_loss, {"cross_entropy_loss"}},
  };
  return all;
}

}  // namespace

FactorRule find_factor_rule(std::string_view base) {
  static const std::unordered_map<std::string_view, FactorRule> table = [] {
    std::unordered_map<std::string_view, FactorRule> rules;
    for (const Family& family : families()) {
      for (const std::string_view name : family.operators) rules.emplace(name, family.rule);
    }
    return rules;
  }();
  const auto found = table.find(base);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace rannc::ir::sharding
