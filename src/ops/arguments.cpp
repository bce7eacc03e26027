#include "ops/arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>

#include "ops/place.h"
#include "rannc/util/error.h"

namespace rannc::ops {
namespace {

/// An argument that does not fit; the caller adds which node and which argument.
struct Misfit {
  std::string what;
};

std::string kind_of(const ir::Argument& argument) {
  static constexpr std::array kNames{
      "None",     "a tensor", "a list of tensors",  "an integer",       "a float",        "a bool",
      "a string", "a device", "a list of integers", "a list of floats", "a list of bools"};
  static_assert(kNames.size() == std::variant_size_v<ir::Argument>);
  return kNames[argument.index()];
}

[[noreturn]] void misfit(const ir::Argument& argument, const c10::Type& type) {
  throw Misfit{c10::str("the operator wants ", type.annotation_str(), " but the graph gives ",
                        kind_of(argument))};
}

c10::Device meant(const ir::Device& literal, c10::Device of_stage) {
  if (literal.name == "host") return c10::kCPU;
  if (literal.name == "meta") return c10::kMeta;
  return of_stage;
}

std::optional<c10::Scalar> scalar(const ir::Argument& argument, int64_t rows) {
  if (const auto* integer = std::get_if<ir::AffineInt>(&argument)) return integer->at(rows);
  if (const auto* number = std::get_if<double>(&argument)) return *number;
  if (const auto* flag = std::get_if<bool>(&argument)) return *flag;
  return std::nullopt;
}

/// A list argument, whatever the graph's spelling of it: ints where floats are wanted, one number
/// where a list of `length` is wanted (`stride=2`), an empty list of any kind.
std::optional<std::vector<c10::Scalar>> scalars(const ir::Argument& argument,
                                                std::optional<int32_t> length, int64_t rows) {
  std::vector<c10::Scalar> found;
  if (const auto* integers = std::get_if<std::vector<ir::AffineInt>>(&argument)) {
    for (const ir::AffineInt& integer : *integers) found.emplace_back(integer.at(rows));
    return found;
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&argument)) {
    for (double number : *numbers) found.emplace_back(number);
    return found;
  }
  if (const auto* flags = std::get_if<std::vector<bool>>(&argument)) {
    for (bool flag : *flags) found.emplace_back(flag);
    return found;
  }
  if (const auto* tensors = std::get_if<ir::ValueList>(&argument); tensors != nullptr) {
    if (tensors->values.empty()) return found;
    return std::nullopt;
  }
  if (const auto one = scalar(argument, rows); one && length) {
    return std::vector<c10::Scalar>(static_cast<size_t>(*length), *one);
  }
  return std::nullopt;
}

c10::IValue list_literal(const ir::Argument& argument, const c10::Type& type,
                         const c10::TypePtr& element, std::optional<int32_t> length, int64_t rows) {
  const auto numbers = scalars(argument, length, rows);
  if (!numbers) misfit(argument, type);
  const auto whole = [](const c10::Scalar& number) { return number.isIntegral(false); };
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      if (!std::ranges::all_of(*numbers, whole)) misfit(argument, type);
      c10::List<int64_t> list;
      for (const c10::Scalar& number : *numbers) list.push_back(number.toLong());
      return list;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> list;
      for (const c10::Scalar& number : *numbers) list.push_back(number.toDouble());
      return list;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> list;
      for (const c10::Scalar& number : *numbers) list.push_back(number.toBool());
      return list;
    }
    case c10::TypeKind::NumberType: {
      c10::List<c10::Scalar> list;
      for (const c10::Scalar& number : *numbers) list.push_back(number);
      return list;
    }
    case c10::TypeKind::TensorType:
    case c10::TypeKind::OptionalType:
      if (numbers->empty()) {
        if (element->kind() == c10::TypeKind::TensorType) return c10::List<at::Tensor>();
        return c10::List<std::optional<at::Tensor>>();
      }
      [[fallthrough]];
    default:
      misfit(argument, type);
  }
}

c10::IValue literal(const ir::Argument& argument, const c10::TypePtr& type,
                    std::optional<int32_t> length, int64_t rows, c10::Device device) {
  const bool none = std::holds_alternative<ir::None>(argument);
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      if (none) return {};
      return literal(argument, type->expectRef<c10::OptionalType>().getElementType(), length, rows,
                     device);
    case c10::TypeKind::NoneType:
    case c10::TypeKind::GeneratorType:
      if (none) return {};
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (const auto* integer = std::get_if<ir::AffineInt>(&argument)) return integer->at(rows);
      if (const auto* flag = std::get_if<bool>(&argument)) return int64_t{*flag};
      break;
    case c10::TypeKind::FloatType:
      if (const auto number = scalar(argument, rows)) return number->toDouble();
      break;
    case c10::TypeKind::BoolType:
      if (const auto* flag = std::get_if<bool>(&argument)) return *flag;
      if (const auto* integer = std::get_if<ir::AffineInt>(&argument))
        return integer->at(rows) != 0;
      break;
    case c10::TypeKind::NumberType:
      if (const auto number = scalar(argument, rows)) return *number;
      break;
    case c10::TypeKind::StringType:
      if (const auto* text = std::get_if<std::string>(&argument)) return *text;
      break;
    case c10::TypeKind::DeviceObjType:
      if (const auto* named = std::get_if<ir::Device>(&argument)) return meant(*named, device);
      break;
    case c10::TypeKind::TensorType:
      // As Python's argument parser does it, so that `x16 * 2.0` stays float16.
      if (const auto number = scalar(argument, rows)) {
        return at::native::wrapped_scalar_tensor(*number);
      }
      break;
    case c10::TypeKind::ListType:
      return list_literal(argument, *type, type->expectRef<c10::ListType>().getElementType(),
                          length, rows);
    default:
      break;
  }
  misfit(argument, *type);
}

bool depends_on_rows(const ir::Argument& argument) {
  if (const auto* integer = std::get_if<ir::AffineInt>(&argument))
    return integer->depends_on_rows();
  if (const auto* integers = std::get_if<std::vector<ir::AffineInt>>(&argument)) {
    return std::ranges::any_of(*integers, &ir::AffineInt::depends_on_rows);
  }
  return false;
}

const c10::Type& without_optional(const c10::Type& type) {
  if (type.kind() != c10::TypeKind::OptionalType) return type;
  return *type.expectRef<c10::OptionalType>().getElementType();
}

}  // namespace

Arguments::Arguments(const ir::Node& node, const c10::FunctionSchema* schema, c10::Device device)
    : device_(device) {
  // Wrapped numbers may be saved for backward, which tensors made in inference mode may not.
  const c10::InferenceMode ordinary(false);
  if (schema == nullptr) {
    for (const ir::Argument& argument : node.inputs) {
      if (std::holds_alternative<ir::ValueId>(argument)) {
        slots_.push_back({Slot::Kind::tensor, {}, {}});
      } else if (const auto* list = std::get_if<ir::ValueList>(&argument)) {
        const auto given = std::ranges::count_if(list->values, &ir::ValueId::valid);
        slots_.insert(slots_.end(), static_cast<size_t>(given), {Slot::Kind::tensor, {}, {}});
      }
    }
    return;
  }
  const std::vector<c10::Argument>& wanted = schema->arguments();
  if (node.inputs.size() > wanted.size()) {
    throw TraceError(c10::str(place(node), " has ", node.inputs.size(),
                              " arguments, but the operator takes ", wanted.size(), ": ", *schema));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    try {
      if (i < node.inputs.size()) {
        slots_.push_back(make_slot(node.inputs[i], wanted[i]));
      } else if (wanted[i].default_value()) {
        slots_.push_back({Slot::Kind::literal, *wanted[i].default_value(), {}});
      } else {
        throw Misfit{"it is missing and has no default"};
      }
    } catch (const Misfit& misfit) {
      throw TraceError(c10::str(place(node), ", argument ", i, " '", wanted[i].name(),
                                "': ", misfit.what, " (", *schema, ")"));
    }
  }
}

Arguments::Slot Arguments::make_slot(const ir::Argument& argument, const c10::Argument& wanted) {
  const c10::Type& type = without_optional(*wanted.type());
  if (std::holds_alternative<ir::ValueId>(argument)) {
    if (type.kind() == c10::TypeKind::TensorType) return {Slot::Kind::tensor, {}, {}};
    misfit(argument, type);
  }
  if (const auto* list = std::get_if<ir::ValueList>(&argument); list && !list->values.empty()) {
    if (type.kind() != c10::TypeKind::ListType) misfit(argument, type);
    const c10::TypeKind element = type.expectRef<c10::ListType>().getElementType()->kind();
    Slot slot;
    for (ir::ValueId value : list->values) slot.present.push_back(value.valid());
    if (element == c10::TypeKind::OptionalType) {
      slot.kind = Slot::Kind::optional_tensors;
    } else if (element == c10::TypeKind::TensorType &&
               std::ranges::count(slot.present, false) == 0) {
      slot.kind = Slot::Kind::tensors;
    } else {
      misfit(argument, type);
    }
    return slot;
  }
  if (depends_on_rows(argument)) {
    sized_.push_back({slots_.size(), wanted.type(), wanted.N(), argument});
  }
  return {Slot::Kind::literal, literal(argument, wanted.type(), wanted.N(), rows_, device_), {}};
}

void Arguments::set_rows(int64_t rows) {
  if (rows == rows_) return;
  const c10::InferenceMode ordinary(false);
  for (const SizedLiteral& sized : sized_) {
    slots_[sized.slot].value = literal(sized.literal, sized.type, sized.length, rows, device_);
  }
  rows_ = rows;
}

void Arguments::push(std::span<at::Tensor> operands, torch::jit::Stack& stack) const {
  size_t next = 0;
  const auto take = [&]() -> at::Tensor {
    RANNC_CHECK(next < operands.size(), c10::str("got only ", operands.size(), " operands"));
    return std::move(operands[next++]);
  };
  for (const Slot& slot : slots_) {
    switch (slot.kind) {
      case Slot::Kind::literal:
        stack.push_back(slot.value);
        break;
      case Slot::Kind::tensor:
        stack.emplace_back(take());
        break;
      case Slot::Kind::tensors: {
        c10::List<at::Tensor> list;
        list.reserve(slot.present.size());
        for (size_t i = 0; i < slot.present.size(); ++i) list.push_back(take());
        stack.emplace_back(std::move(list));
        break;
      }
      case Slot::Kind::optional_tensors: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(slot.present.size());
        for (bool present : slot.present) {
          list.push_back(present ? std::optional(take()) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

}  // namespace rannc::ops
