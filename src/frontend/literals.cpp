#include "frontend/literals.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include "rannc/util/error.h"

namespace rannc::frontend {

ir::DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return ir::DType::float64;
    case c10::ScalarType::Float:
      return ir::DType::float32;
    case c10::ScalarType::Half:
      return ir::DType::float16;
    case c10::ScalarType::BFloat16:
      return ir::DType::bfloat16;
    case c10::ScalarType::Long:
      return ir::DType::int64;
    case c10::ScalarType::Int:
      return ir::DType::int32;
    case c10::ScalarType::Short:
      return ir::DType::int16;
    case c10::ScalarType::Char:
      return ir::DType::int8;
    case c10::ScalarType::Byte:
      return ir::DType::uint8;
    case c10::ScalarType::Bool:
      return ir::DType::boolean;
    case c10::ScalarType::ComplexFloat:
      return ir::DType::complex64;
    case c10::ScalarType::ComplexDouble:
      return ir::DType::complex128;
    default:
      throw TraceError(c10::str("a tensor of dtype ", type,
                                " cannot be part of a graph; use one of "
                                "the ordinary number types"));
  }
}

std::optional<ir::Argument> literal_of(const c10::IValue& value) {
  if (value.isNone()) return ir::None{};
  if (value.isInt()) return ir::AffineInt{value.toInt(), 0};
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return ir::Device{c10::DeviceTypeName(value.toDevice().type(), true)};
  if (value.isIntList()) {
    std::vector<ir::AffineInt> list;
    for (int64_t item : value.toIntVector()) list.push_back({item, 0});
    return list;
  }
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    std::vector<bool> list;
    for (bool item : value.toBoolList()) list.push_back(item);
    return list;
  }
  return std::nullopt;
}

std::optional<ir::Argument> number_of(const at::Tensor& tensor) {
  const bool readable = tensor.defined() && tensor.dim() == 0 && tensor.device().is_cpu() &&
                        tensor.has_storage() && tensor.const_data_ptr() != nullptr &&
                        !tensor.key_set().has(c10::DispatchKey::Python);
  if (!readable || tensor.is_complex()) return std::nullopt;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::python_ks);
  return literal_of(c10::IValue(tensor.item()));
}

std::optional<ir::Argument> wrapped_number(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return *tensor.const_data_ptr<double>();
    case c10::ScalarType::Long:
      return ir::AffineInt{*tensor.const_data_ptr<int64_t>(), 0};
    case c10::ScalarType::Bool:
      return *tensor.const_data_ptr<bool>();
    default:
      return std::nullopt;
  }
}

}  // namespace rannc::frontend
