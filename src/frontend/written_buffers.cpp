#include "frontend/written_buffers.h"

#include <array>
#include <string_view>

namespace rannc::frontend {
namespace {

// The flag that says whether the statistics of this batch are used, and so stored.
struct Normalisation {
  std::string_view op;
  std::string_view flag;
};
constexpr std::array kNormalisations{
    Normalisation{"aten::batch_norm", "training"},
    Normalisation{"aten::_batch_norm_impl_index", "training"},
    Normalisation{"aten::native_batch_norm", "training"},
    Normalisation{"aten::cudnn_batch_norm", "training"},
    Normalisation{"aten::miopen_batch_norm", "training"},
    Normalisation{"aten::instance_norm", "use_input_stats"},
};

}  // namespace

std::vector<size_t> written_buffers(const c10::FunctionSchema& schema,
                                    const std::vector<ir::Argument>& arguments) {
  const Normalisation* found = nullptr;
  for (const Normalisation& candidate : kNormalisations) {
    if (candidate.op == schema.name()) found = &candidate;
  }
  if (found == nullptr) return {};
  std::vector<size_t> buffers;
  bool flag = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "running_mean" || name == "running_var") buffers.push_back(i);
    if (name == found->flag) {
      const bool* value = std::get_if<bool>(&arguments[i]);
      flag = value != nullptr && *value;
    }
  }
  return flag ? buffers : std::vector<size_t>{};
}

}  // namespace rannc::frontend
