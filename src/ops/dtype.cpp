#include "rannc/ops/dtype.h"

#include <array>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::ops {
namespace {

using ir::DType;
constexpr std::array<std::pair<DType, c10::ScalarType>, 12> kPairs{{
    {DType::float64, c10::ScalarType::Double},
    {DType::float32, c10::ScalarType::Float},
    {DType::float16, c10::ScalarType::Half},
    {DType::bfloat16, c10::ScalarType::BFloat16},
    {DType::int64, c10::ScalarType::Long},
    {DType::int32, c10::ScalarType::Int},
    {DType::int16, c10::ScalarType::Short},
    {DType::int8, c10::ScalarType::Char},
    {DType::uint8, c10::ScalarType::Byte},
    {DType::boolean, c10::ScalarType::Bool},
    {DType::complex64, c10::ScalarType::ComplexFloat},
    {DType::complex128, c10::ScalarType::ComplexDouble},
}};

}  // namespace

c10::ScalarType to_torch(ir::DType dtype) {
  for (const auto& [ours, torchs] : kPairs) {
    if (ours == dtype) return torchs;
  }
  RANNC_CHECK(false, "dtype number " + std::to_string(static_cast<int>(dtype)) + " is unknown");
}

ir::DType from_torch(c10::ScalarType type) {
  for (const auto& [ours, torchs] : kPairs) {
    if (torchs == type) return ours;
  }
  throw TraceError("tensors of dtype " + std::string(c10::toString(type)) +
                   " are not supported; convert them before the model, or cast inside it.");
}

}  // namespace rannc::ops
