#include "cost/operator_class.h"

#include <unordered_map>

namespace rannc::cost {
namespace {

constexpr OperatorClass kMatrix{Work::matmul, Saves::operands};
constexpr OperatorClass kConvolution{Work::convolution, Saves::operands};
constexpr OperatorClass kTransposed{Work::transposed_convolution, Saves::operands};
constexpr OperatorClass kAttention{Work::attention, Saves::all};
constexpr OperatorClass kRecurrent{Work::recurrent, Saves::all};
constexpr OperatorClass kView{Work::view, Saves::nothing};
constexpr OperatorClass kNothing{Work::bytes, Saves::nothing};
constexpr OperatorClass kResults{Work::bytes, Saves::results};
constexpr OperatorClass kFirst{Work::bytes, Saves::first_operand};
constexpr OperatorClass kIntegers{Work::bytes, Saves::integers};
constexpr OperatorClass kMask{Work::bytes, Saves::mask};
constexpr OperatorClass kGather{Work::gather, Saves::integers};

const std::unordered_map<std::string_view, OperatorClass> kClasses{
    {"linear", {Work::linear, Saves::operands}},
    {"mm", kMatrix},
    {"matmul", kMatrix},
    {"bmm", kMatrix},
    {"addmm", kMatrix},
    {"mv", kMatrix},
    {"baddbmm", kMatrix},
    {"addbmm", kMatrix},
    {"dot", kMatrix},
    {"einsum", {Work::einsum, Saves::operands}},
    {"conv1d", kConvolution},
    {"conv2d", kConvolution},
    {"conv3d", kConvolution},
    {"convolution", kConvolution},
    {"_convolution", kConvolution},
    {"conv_transpose1d", kTransposed},
    {"conv_transpose2d", kTransposed},
    {"conv_transpose3d", kTransposed},
    {"scaled_dot_product_attention", kAttention},
    {"_scaled_dot_product_flash_attention_for_cpu", kAttention},
    {"_scaled_dot_product_flash_attention", kAttention},
    {"_scaled_dot_product_efficient_attention", kAttention},
    {"lstm", kRecurrent},
    {"gru", kRecurrent},
    {"rnn_tanh", kRecurrent},
    {"rnn_relu", kRecurrent},

    {"view", kView},
    {"_unsafe_view", kView},
    {"transpose", kView},
    {"permute", kView},
    {"t", kView},
    {"unsqueeze", kView},
    {"squeeze", kView},
    {"select", kView},
    {"slice", kView},
    {"expand", kView},
    {"expand_as", kView},
    {"split", kView},
    {"split_with_sizes", kView},
    {"chunk", kView},
    {"unbind", kView},
    {"detach", kView},
    {"narrow", kView},
    {"alias", kView},
    {"as_strided", kView},
    {"view_as", kView},
    {"numpy_T", kView},
    {"diagonal", kView},
    {"unflatten", kView},

    {"embedding", kGather},
    {"index_select", kGather},
    {"gather", kGather},
    {"index", kGather},
    {"index_put", kIntegers},
    {"scatter", kIntegers},
    {"scatter_add", kIntegers},
    {"masked_fill", kIntegers},
    {"where", kIntegers},
    {"masked_select", kIntegers},

    {"add", kNothing},
    {"sub", kNothing},
    {"rsub", kNothing},
    {"neg", kNothing},
    {"cat", kNothing},
    {"stack", kNothing},
    {"sum", kNothing},
    {"mean", kNothing},
    {"to", kNothing},
    {"_to_copy", kNothing},
    {"clone", kNothing},
    {"contiguous", kNothing},
    {"reshape", kNothing},
    {"flatten", kNothing},
    {"copy", kNothing},
    {"pad", kNothing},
    {"constant_pad_nd", kNothing},
    {"tril", kNothing},
    {"triu", kNothing},
    {"roll", kNothing},
    {"repeat", kNothing},
    {"avg_pool2d", kFirst},
    {"adaptive_avg_pool2d", kNothing},
    {"upsample_nearest2d", kNothing},

    {"relu", kResults},
    {"sigmoid", kResults},
    {"tanh", kResults},
    {"exp", kResults},
    {"sqrt", kResults},
    {"rsqrt", kResults},
    {"reciprocal", kResults},
    {"softmax", kResults},
    {"_softmax", kResults},
    {"log_softmax", kResults},
    {"_log_softmax", kResults},
    {"cumprod", kResults},

    {"gelu", kFirst},
    {"silu", kFirst},
    {"mish", kFirst},
    {"softplus", kFirst},
    {"leaky_relu", kFirst},
    {"elu", kFirst},
    {"hardtanh", kFirst},
    {"hardswish", kFirst},
    {"pow", kFirst},
    {"square", kFirst},
    {"log", kFirst},
    {"abs", kFirst},
    {"sin", kFirst},
    {"cos", kFirst},
    {"erf", kFirst},
    {"clamp", kFirst},
    {"layer_norm", kFirst},
    {"native_layer_norm", kFirst},
    {"group_norm", kFirst},
    {"batch_norm", kFirst},
    {"rms_norm", kFirst},
    {"instance_norm", kFirst},
    {"max_pool2d", kFirst},

    {"dropout", kMask},
    {"native_dropout", kMask},
    {"feature_dropout", kMask},
};

std::string_view base_name(std::string_view op) {
  if (const size_t space = op.find("::"); space != std::string_view::npos)
    op.remove_prefix(space + 2);
  op = op.substr(0, op.find('.'));
  if (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return op;
}

}  // namespace

OperatorClass operator_class(std::string_view op) {
  const auto found = kClasses.find(base_name(op));
  return found == kClasses.end() ? OperatorClass{} : found->second;
}

}  // namespace rannc::cost
