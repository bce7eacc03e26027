#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> layers() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"conv1d", F::convolution, convolution},
      {"conv2d", F::convolution, convolution},
      {"conv3d", F::convolution, convolution},
      {"conv_transpose1d", F::convolution, transposed_convolution},
      {"conv_transpose2d", F::convolution, transposed_convolution},
      {"conv_transpose3d", F::convolution, transposed_convolution},
      {"_convolution", F::convolution, convolution},
      {"convolution", F::convolution, convolution},
      {"_convolution_mode", F::convolution},
      {"cudnn_convolution", F::convolution},
      {"mkldnn_convolution", F::convolution},

      {"adaptive_avg_pool1d", F::spatial},
      {"adaptive_avg_pool2d", F::spatial, sums},
      {"_adaptive_avg_pool2d", F::spatial},
      {"adaptive_avg_pool3d", F::spatial},
      {"_adaptive_avg_pool3d", F::spatial},
      {"adaptive_max_pool1d", F::spatial},
      {"adaptive_max_pool2d", F::spatial},
      {"adaptive_max_pool3d", F::spatial},
      {"avg_pool1d", F::spatial},
      {"avg_pool2d", F::spatial, pools},
      {"avg_pool3d", F::spatial},
      {"max_pool1d", F::spatial, pools},
      {"max_pool1d_with_indices", F::spatial},
      {"max_pool2d", F::spatial, pools},
      {"max_pool2d_with_indices", F::spatial},
      {"max_pool3d", F::spatial, pools},
      {"max_pool3d_with_indices", F::spatial},
      {"pixel_shuffle", F::spatial},
      {"pixel_unshuffle", F::spatial},
      {"upsample_bicubic2d", F::spatial},
      {"_upsample_bicubic2d_aa", F::spatial},
      {"upsample_bilinear2d", F::spatial},
      {"_upsample_bilinear2d_aa", F::spatial},
      {"upsample_linear1d", F::spatial},
      {"upsample_nearest1d", F::spatial},
      {"upsample_nearest2d", F::spatial, keeps_nothing},
      {"upsample_nearest3d", F::spatial},
      {"_upsample_nearest_exact1d", F::spatial},
      {"_upsample_nearest_exact2d", F::spatial},
      {"_upsample_nearest_exact3d", F::spatial},
      {"upsample_trilinear3d", F::spatial},

      {"constant_pad_nd", F::pad, keeps_nothing},
      {"pad", F::pad, keeps_nothing, known},
      {"reflection_pad1d", F::pad},
      {"reflection_pad2d", F::pad},
      {"reflection_pad3d", F::pad},
      {"replication_pad1d", F::pad},
      {"replication_pad2d", F::pad},
      {"replication_pad3d", F::pad},

      {"batch_norm", F::batch_norm, batch_norm, statistics},
      {"_batch_norm_impl_index", F::batch_norm, batch_norm, statistics},
      {"cudnn_batch_norm", F::batch_norm, batch_norm, statistics},
      {"miopen_batch_norm", F::batch_norm, plain, statistics},
      {"native_batch_norm", F::batch_norm, batch_norm, statistics},
      {"_native_batch_norm_legit", F::batch_norm, plain, statistics},

      {"_fused_rms_norm", F::layer_norm},
      {"layer_norm", F::layer_norm, layer_norm},
      {"native_layer_norm", F::layer_norm, layer_norm},
      {"rms_norm", F::layer_norm, layer_norm},

      {"affine_grid_generator", F::rows_first},
      {"channel_shuffle", F::rows_first},
      {"col2im", F::rows_first},
      {"grid_sampler", F::rows_first},
      {"grid_sampler_2d", F::rows_first},
      {"grid_sampler_3d", F::rows_first},
      {"group_norm", F::rows_first, batch_norm},
      {"gru_cell", F::rows_first},
      {"im2col", F::rows_first},
      {"instance_norm", F::rows_first, batch_norm, statistics},
      {"lstm_cell", F::rows_first},
      {"multinomial", F::rows_first, plain, draws},
      {"native_group_norm", F::rows_first, batch_norm},
      {"_native_multi_head_attention", F::rows_first, plain, draws},
      {"rnn_relu_cell", F::rows_first},
      {"rnn_tanh_cell", F::rows_first},
      {"_transformer_encoder_layer_fwd", F::rows_first},

      {"embedding", F::embedding, gathers},

      {"_embedding_bag", F::embedding_bag},
      {"embedding_bag", F::embedding_bag},

      {"gru", F::recurrent, recurrent, draws},
      {"lstm", F::recurrent, recurrent, draws},
      {"rnn_relu", F::recurrent, recurrent, draws},
      {"rnn_tanh", F::recurrent, recurrent, draws},

      {"one_hot", F::one_hot},
  };
}

}  // namespace rannc::ir::operators
