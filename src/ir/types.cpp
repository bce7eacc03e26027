#include "rannc/ir/types.h"

#include <fmt/format.h>

#include <array>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::ir {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array kFacts{
    DTypeFacts{DType::float64, "float64", 8},     DTypeFacts{DType::float32, "float32", 4},
    DTypeFacts{DType::float16, "float16", 2},     DTypeFacts{DType::bfloat16, "bfloat16", 2},
    DTypeFacts{DType::int64, "int64", 8},         DTypeFacts{DType::int32, "int32", 4},
    DTypeFacts{DType::int16, "int16", 2},         DTypeFacts{DType::int8, "int8", 1},
    DTypeFacts{DType::uint8, "uint8", 1},         DTypeFacts{DType::boolean, "boolean", 1},
    DTypeFacts{DType::complex64, "complex64", 8}, DTypeFacts{DType::complex128, "complex128", 16},
};

const DTypeFacts& facts(DType dtype) { return kFacts.at(static_cast<size_t>(dtype)); }

}  // namespace

int64_t size_bytes(DType dtype) { return facts(dtype).bytes; }

std::string_view name(DType dtype) { return facts(dtype).name; }

DType dtype_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (const DTypeFacts& fact : kFacts) {
    if (fact.name == name) return fact.dtype;
    names.emplace_back(fact.name);
  }
  throw ConfigError(
      fmt::format("unknown dtype '{}'; did you mean '{}'?", name, closest(name, names)));
}

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
    case DType::complex64:
    case DType::complex128:
      return true;
    default:
      return false;
  }
}

}  // namespace rannc::ir
