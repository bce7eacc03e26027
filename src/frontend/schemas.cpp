#include "frontend/schemas.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>

namespace rannc::frontend {
namespace {

namespace jit = torch::jit;

bool takes(const c10::Type& formal, const c10::Type& actual) {
  if (actual.isSubtypeOf(formal)) return true;
  if (actual.kind() != c10::TypeKind::BoolType) return false;
  return c10::NumberType::get()->isSubtypeOf(formal);  // also of an optional Scalar
}

bool takes(const c10::FunctionSchema& schema, const jit::Node& node) {
  const auto& formals = schema.arguments();
  return std::ranges::equal(formals, node.inputs(),
                            [](const c10::Argument& formal, const jit::Value* actual) {
                              return takes(*formal.type(), *actual->type());
                            }) &&
         schema.returns().size() == node.outputs().size();
}

}  // namespace

const c10::FunctionSchema* schema_of(const jit::Node& node) {
  if (const c10::FunctionSchema* schema = node.maybeSchema()) return schema;
  for (const auto& candidate : jit::getAllOperatorsFor(node.kind())) {
    if (takes(candidate->schema(), node)) return &candidate->schema();
  }
  return nullptr;
}

}  // namespace rannc::frontend
