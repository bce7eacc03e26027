#include "ir/operators/tables.h"

namespace rannc::ir::operators {

std::vector<Operator> reduce() {
  using enum WorkClass;
  using enum Trait;
  using F = OperatorFamily;
  return {
      {"nansum", F::sum},
      {"sum", F::sum, sums, known},

      {"mean", F::mean, sums, known},

      {"all", F::reduce, plain, known | checked},
      {"amax", F::reduce, pools, known | checked},
      {"amin", F::reduce, pools, known | checked},
      {"aminmax", F::reduce},
      {"any", F::reduce, plain, known | checked},
      {"argmax", F::reduce, sums},
      {"argmin", F::reduce, sums},
      {"count_nonzero", F::reduce},
      {"kthvalue", F::reduce},
      {"linalg_norm", F::reduce},
      {"linalg_vector_norm", F::reduce, pools},
      {"logsumexp", F::reduce, pools},
      {"median", F::reduce},
      {"mode", F::reduce},
      {"nanmean", F::reduce},
      {"nanmedian", F::reduce},
      {"norm", F::reduce, pools},
      {"prod", F::reduce},
      {"std", F::reduce, pools},
      {"std_mean", F::reduce},
      {"var", F::reduce, pools},
      {"var_mean", F::reduce},

      {"histc", F::histogram},

      {"max", F::extremum, orders, known | checked},
      {"min", F::extremum, orders, known | checked},

      {"cosine_similarity", F::similarity},
      {"pairwise_distance", F::similarity},

      {"argsort", F::along_dimension},
      {"cummax", F::along_dimension},
      {"cummin", F::along_dimension},
      {"cumprod", F::along_dimension, softmax},
      {"cumsum", F::along_dimension, sums, known},
      {"diff", F::along_dimension},
      {"flip", F::along_dimension, plain, known},
      {"glu", F::along_dimension},
      {"_log_softmax", F::along_dimension, softmax},
      {"log_softmax", F::along_dimension, softmax},
      {"logcumsumexp", F::along_dimension},
      {"roll", F::along_dimension, keeps_nothing},
      {"_safe_softmax", F::along_dimension, softmax},
      {"_softmax", F::along_dimension, softmax},
      {"softmax", F::along_dimension, softmax},
      {"sort", F::along_dimension, orders},
      {"topk", F::along_dimension, orders},
      {"unfold", F::along_dimension},

      {"fft_fft", F::fourier},
      {"fft_fft2", F::fourier},
      {"fft_fftn", F::fourier},
      {"fft_hfft", F::fourier},
      {"fft_ifft", F::fourier},
      {"fft_ifft2", F::fourier},
      {"fft_ifftn", F::fourier},
      {"fft_ihfft", F::fourier},
      {"fft_irfft", F::fourier},
      {"fft_irfft2", F::fourier},
      {"fft_irfftn", F::fourier},
      {"fft_rfft", F::fourier},
      {"fft_rfft2", F::fourier},
      {"fft_rfftn", F::fourier},

      {"tril", F::triangle, keeps_nothing, known},
      {"triu", F::triangle, keeps_nothing, known},
  };
}

}  // namespace rannc::ir::operators
