#include <unordered_map>

#include "ir/passes/row_call.h"
#include "ir/passes/rules/families.h"

namespace rannc::ir {
namespace {

struct Family {
  RowRule rule;
  std::vector<std::string_view> operators;
};

// Operators by their base name: "add" stands for every overload of aten::add and aten::add_.
const std::vector<Family>& families() {
  static const std::vector<Family> all{
      {rules::pointwise,
       {"abs", "absolute", "acos", "acosh", "addcdiv", "addcmul", "alpha_dropout", "angle",
        "arccos", "arcsin", "arctan", "arctan2", "asin", "asinh", "atan", "atan2", "atanh",
        "bernoulli", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
        "bitwise_right_shift", "bitwise_xor", "bucketize", "ceil", "celu", "clamp", "clamp_max",
        "clamp_min", "clip", "copysign", "cos", "cosh", "deg2rad", "digamma", "elu", "eq", "erf",
        "erfc", "erfinv", "exp", "exp2", "expm1", "feature_alpha_dropout", "feature_dropout",
        "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "gcd",
        "ge", "gelu", "greater", "greater_equal", "gt", "hardshrink", "hardsigmoid", "hardswish",
        "hardtanh", "heaviside", "hypot", "i0", "igamma", "igammac", "isclose", "isfinite",
        "isinf", "isnan", "isneginf", "isposinf", "isreal", "lcm", "ldexp", "le", "leaky_relu",
        "lerp", "less", "less_equal", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid",
        "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor",
        "logit", "lt", "masked_fill", "maximum", "minimum", "mish", "mvlgamma", "nan_to_num",
        "native_dropout", "ne", "nextafter", "normal", "not_equal", "polar", "polygamma", "pow",
        "prelu", "rad2deg", "reciprocal", "relu", "relu6", "remainder", "round", "rrelu", "rsqrt",
        "searchsorted", "selu", "sgn", "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh",
        "softplus", "softshrink", "special_entr", "special_erf", "special_expit",
        "special_expm1", "special_log1p", "special_logit", "special_xlog1py", "special_xlogy",
        "sqrt", "square", "tan", "tanh", "threshold", "trunc", "where", "xlogy", "__and__",
        "__iand__", "__ior__", "__ixor__", "__lshift__", "__or__", "__rshift__", "__xor__",
        "uniform", "exponential", "random"}},
      {rules::identity,
       {"_cast_Float", "_cast_Half", "_to_copy", "alias", "clone", "contiguous", "cpu", "cuda",
        "detach", "lift", "lift_fresh", "lift_fresh_copy", "neg", "negative", "pin_memory",
        "positive", "requires_grad", "resolve_conj", "resolve_neg", "to", "type_as",
        "real", "imag", "conj", "_conj"}},
      {rules::add, {"add", "sub", "subtract", "rsub"}},
      {rules::multiply, {"mul", "multiply"}},
      {rules::divide, {"div", "divide", "true_divide"}},
      {rules::dropout, {"dropout"}},
      {rules::copy, {"copy"}},
      {rules::fill, {"fill", "zero"}},

      {rules::create,
       {"empty", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "new_ones",
        "new_zeros", "ones", "rand", "randint", "randn", "zeros"}},
      {rules::create_like,
       {"empty_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"}},
      {rules::full, {"full", "full_like", "new_full", "scalar_tensor"}},
      {rules::counting,
       {"arange", "eye", "linspace", "logspace", "randperm", "range", "tril_indices",
        "triu_indices"}},

      {rules::reshape,
       {"_reshape_alias", "_unsafe_view", "flatten", "ravel", "reshape", "reshape_as", "squeeze",
        "unflatten", "unsqueeze", "view", "view_as", "view_as_complex", "view_as_real",
        "view_copy"}},
      {rules::permute, {"permute"}},
      {rules::transpose, {"mT", "matrix_H", "numpy_T", "swapaxes", "swapdims", "t", "transpose"}},
      {rules::movedim, {"moveaxis", "movedim"}},
      {rules::expand, {"broadcast_to", "expand", "expand_as"}},
      {rules::select, {"select"}},
      {rules::slice, {"slice"}},
      {rules::narrow, {"narrow", "narrow_copy"}},
      {rules::split,
       {"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split",
        "unsafe_split_with_sizes"}},
      {rules::unbind, {"unbind"}},
      {rules::diagonal, {"diagonal"}},

      {rules::cat, {"cat", "concat", "concatenate"}},
      {rules::stack, {"stack"}},
      {rules::repeat, {"repeat", "tile"}},
      {rules::repeat_interleave, {"repeat_interleave"}},

      {rules::sum, {"sum", "nansum"}},
      {rules::mean, {"mean"}},
      {rules::reduce,
       {"all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "kthvalue",
        "linalg_norm", "linalg_vector_norm", "logsumexp", "median", "mode", "nanmean",
        "nanmedian", "norm", "prod", "std", "std_mean", "var", "var_mean"}},
      {rules::extremum, {"max", "min"}},
      {rules::along_dimension,
       {"_log_softmax", "_softmax", "argsort", "cummax", "cummin", "cumprod", "cumsum", "diff",
        "flip", "glu", "log_softmax", "logcumsumexp", "roll", "softmax", "sort", "topk",
        "unfold"}},
      {rules::triangle, {"tril", "triu"}},
      {rules::similarity, {"cosine_similarity", "pairwise_distance"}},

      {rules::matmul, {"bmm", "dot", "linalg_matmul", "matmul", "mm", "mv", "vdot", "__matmul__"}},
      {rules::addmm, {"addmm", "addmv", "baddbmm"}},
      {rules::linear, {"linear"}},
      {rules::einsum, {"einsum"}},
      {rules::outer, {"ger", "outer"}},
      {rules::cdist, {"cdist"}},
      {rules::attention, {"scaled_dot_product_attention"}},

      {rules::convolution,
       {"_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "convolution", "cudnn_convolution", "mkldnn_convolution"}},
      {rules::spatial,
       {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
        "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
        "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
        "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices",
        "max_pool3d", "max_pool3d_with_indices", "pixel_shuffle", "pixel_unshuffle",
        "upsample_bicubic2d", "_upsample_bicubic2d_aa", "upsample_bilinear2d",
        "_upsample_bilinear2d_aa", "upsample_linear1d", "upsample_nearest1d",
        "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_trilinear3d"}},
      {rules::pad,
       {"constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
        "replication_pad1d", "replication_pad2d", "replication_pad3d"}},
      {rules::batch_norm,
       {"_batch_norm_impl_index", "_native_batch_norm_legit", "batch_norm", "cudnn_batch_norm",
        "miopen_batch_norm", "native_batch_norm"}},
      {rules::layer_norm, {"_fused_rms_norm", "layer_norm", "native_layer_norm", "rms_norm"}},
      {rules::rows_first,
       {"_native_multi_head_attention", "_transformer_encoder_layer_fwd", "channel_shuffle",
        "col2im", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "affine_grid_generator",
        "group_norm", "gru_cell", "im2col", "instance_norm", "lstm_cell", "multinomial",
        "native_group_norm", "rnn_relu_cell", "rnn_tanh_cell"}},
      {rules::embedding, {"embedding"}},
      {rules::recurrent, {"gru", "lstm", "rnn_relu", "rnn_tanh"}},
      {rules::one_hot, {"one_hot"}},

      {rules::pointwise_loss,
       {"binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss",
        "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "poisson_nll_loss",
        "smooth_l1_loss", "soft_margin_loss"}},
      {rules::class_loss, {"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"}},
      {rules::sample_loss,
       {"cosine_embedding_loss", "multi_margin_loss", "multilabel_margin_loss",
        "triplet_margin_loss"}},
      {rules::ctc_loss, {"ctc_loss"}},

      {rules::index, {"index", "_unsafe_index"}},
      {rules::index_put, {"_index_put_impl", "_unsafe_index_put", "index_put"}},
      {rules::index_select, {"index_select"}},
      {rules::index_write, {"index_add", "index_copy", "index_fill"}},
      {rules::gather,
       {"gather", "scatter", "scatter_add", "scatter_reduce", "take_along_dim"}},
  };
  return all;
}

}  // namespace

RowRule find_row_rule(std::string_view base) {
  static const std::unordered_map<std::string_view, RowRule> table = [] {
    std::unordered_map<std::string_view, RowRule> rules;
    for (const Family& family : families()) {
      for (const std::string_view name : family.operators) rules.emplace(name, family.rule);
    }
    return rules;
  }();
  const auto found = table.find(base);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace rannc::ir
