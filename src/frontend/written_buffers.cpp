#include "frontend/written_buffers.h"

#include "rannc/ir/operators.h"

namespace rannc::frontend {

std::vector<size_t> written_buffers(const c10::FunctionSchema& schema,
                                    const std::vector<ir::Argument>& arguments) {
  const std::string& op = schema.name();
  const bool normalises =
      op.starts_with("aten::") &&
      ir::has(ir::find_operator(ir::base_name(op)).traits, ir::Trait::statistics);
  if (!normalises) return {};
  std::vector<size_t> buffers;
  bool flag = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "running_mean" || name == "running_var") buffers.push_back(i);
    if (name == "training" || name == "use_input_stats") {
      const bool* value = std::get_if<bool>(&arguments[i]);
      flag = value != nullptr && *value;
    }
  }
  return flag ? buffers : std::vector<size_t>{};
}

}  // namespace rannc::frontend
