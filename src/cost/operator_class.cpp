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
constexpr OperatorClass kPart{Work::part, Saves::nothing};
constexpr OperatorClass kNothing{Work::pointwise, Saves::nothing};
constexpr OperatorClass kResults{Work::pointwise, Saves::results};
constexpr OperatorClass kFirst{Work::pointwise, Saves::first_operand};
constexpr OperatorClass kIntegers{Work::pointwise, Saves::integers};
constexpr OperatorClass kMask{Work::pointwise, Saves::mask};
constexpr OperatorClass kGather{Work::gather, Saves::integers};
constexpr OperatorClass kSum{Work::reduction, Saves::nothing};
constexpr OperatorClass kSoftmax{Work::reduction, Saves::results};
constexpr OperatorClass kPool{Work::reduction, Saves::first_operand};
// Backward: x and the gradient are read once for the sums and once for the result, which is
// written: 5 passes over x, where gradients and saved tensors are 3.
constexpr OperatorClass kLayerNorm{Work::reduction, Saves::first_operand, 1, 5.0 / 3};
// Forward, the statistics need a pass of their own: x, x and the result are 3 passes instead of 2.
constexpr OperatorClass kBatchNorm{Work::reduction, Saves::first_operand, 1.5, 5.0 / 3};
// Log-probabilities as large as the operand are written, and so is their gradient.
constexpr OperatorClass kCrossEntropy{Work::reduction, Saves::operands, 2, 2};

const std::unordered_map<std::string_view, OperatorClass> kClasses{
    {"linear", {Work::linear, Saves::operands}},
    {"mm", kMatrix},
    {"matmul", kMatrix},
    {"bmm", kMatrix},
    {"addmm", kMatrix},
    {"mv", kMatrix},
    {"baddbmm", kMatrix},
    {"addbmm", kMatrix},
    {"_grouped_mm", {Work::grouped_matmul, Saves::operands}},
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
    {"select", kPart},
    {"slice", kPart},
    {"expand", kPart},
    {"expand_as", kPart},
    {"split", kPart},
    {"split_with_sizes", kPart},
    {"chunk", kPart},
    {"unbind", kPart},
    {"detach", kView},
    {"narrow", kPart},
    {"alias", kView},
    {"as_strided", kPart},
    {"view_as", kView},
    {"numpy_T", kView},
    {"diagonal", kPart},
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
    {"sum", kSum},
    {"mean", kSum},
    {"cumsum", kSum},
    {"logsumexp", kPool},
    {"max", {Work::reduction, Saves::integers}},
    {"min", {Work::reduction, Saves::integers}},
    {"amax", kPool},
    {"amin", kPool},
    {"argmax", kSum},
    {"argmin", kSum},
    {"topk", {Work::reduction, Saves::integers}},
    {"sort", {Work::reduction, Saves::integers}},
    {"var", kPool},
    {"std", kPool},
    {"norm", kPool},
    {"linalg_vector_norm", kPool},
    {"cross_entropy_loss", kCrossEntropy},
    {"nll_loss", {Work::reduction, Saves::operands}},
    {"mse_loss", {Work::reduction, Saves::operands}},
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
    {"avg_pool2d", kPool},
    {"adaptive_avg_pool2d", kSum},
    {"upsample_nearest2d", kNothing},

    {"relu", kResults},
    {"sigmoid", kResults},
    {"tanh", kResults},
    {"exp", kResults},
    {"sqrt", kResults},
    {"rsqrt", kResults},
    {"reciprocal", kResults},
    {"softmax", kSoftmax},
    {"_softmax", kSoftmax},
    {"_safe_softmax", kSoftmax},
    {"log_softmax", kSoftmax},
    {"_log_softmax", kSoftmax},
    {"cumprod", kSoftmax},

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
    {"layer_norm", kLayerNorm},
    {"native_layer_norm", kLayerNorm},
    {"group_norm", kBatchNorm},
    {"batch_norm", kBatchNorm},
    {"rms_norm", kLayerNorm},
    {"instance_norm", kBatchNorm},
    {"max_pool1d", kPool},
    {"max_pool2d", kPool},
    {"max_pool3d", kPool},
    {"native_group_norm", kBatchNorm},
    {"native_batch_norm", kBatchNorm},
    {"_batch_norm_impl_index", kBatchNorm},
    {"cudnn_batch_norm", kBatchNorm},

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
