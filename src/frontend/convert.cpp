#include <ATen/core/function_schema.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

#include "frontend/literals.h"
#include "frontend/recording.h"
#include "frontend/schemas.h"
#include "frontend/squeezes.h"
#include "frontend/written_buffers.h"
#include "rannc/frontend/same_operator.h"
#include "rannc/util/error.h"

namespace rannc::frontend {
namespace jit = torch::jit;
namespace {

/// Turns the tracer's graph into ours, node by node. Every value of the tracer becomes an argument:
/// a tensor, a list of tensors, or a literal.
class Converter {
 public:
  Converter(const Recording& recording, const std::set<const jit::Value*>& cloned)
      : recording_(recording), cloned_(cloned) {}

  Trace run(const std::string& name, int64_t rows) {
    trace_.rows = rows;
    graph().name = name;
    // The model's own names stay, also where an argument of forward() is called like a parameter.
    for (const StartValue& start : recording_.starts) {
      if (start.kind != ir::ValueKind::input) taken_.insert(start.names.front());
    }
    for (const StartValue& start : recording_.starts) add_start(start);
    for (const jit::Node* node : recording_.graph->nodes()) add(*node);
    for (const jit::Value* output : recording_.outputs) {
      graph().outputs.push_back(tensor(output, *output->node()));
    }
    mark_host();
    return std::move(trace_);
  }

  bool is_host(c10::Device device) {
    on_accelerator_ = on_accelerator_ || !(device.is_cpu() || device.is_meta());
    return device.is_cpu();
  }

  /// Where some tensor is on an accelerator, the model is, and what is on the CPU is there on
  /// purpose. Else "cpu" means the device of the model.
  void mark_host() {
    if (!on_accelerator_) {
      for (ir::Value& value : graph().values) value.on_host = false;
      return;
    }
    for (ir::Node& node : graph().nodes) {
      for (ir::Argument& argument : node.inputs) {
        auto* device = std::get_if<ir::Device>(&argument);
        if (device != nullptr && device->name == "cpu") device->name = "host";
      }
    }
  }

  /// Constants made during the forward pass that it then writes: each run needs a fresh copy.
  std::set<const jit::Value*> written_constants() const {
    std::set<const jit::Value*> found;
    for (const auto& [value, id] : constants_) {
      if (writes_.contains(id)) found.insert(value);
    }
    return found;
  }

 private:
  ir::Graph& graph() { return trace_.capture.graph; }

  [[noreturn]] void fail(const jit::Node& node, const std::string& message) const {
    const NodeFacts facts = facts_of(node);
    throw TraceError(c10::str(place(facts.module, facts.source), ": ", message));
  }

  NodeFacts facts_of(const jit::Node& node) const {
    const auto found = recording_.facts.find(&node);
    return found != recording_.facts.end() ? found->second : NodeFacts{};
  }

  std::string unique(const std::string& name) {
    std::string candidate = name;
    while (!taken_.insert(candidate).second) {
      candidate = c10::str(name, "_", ++repeats_[name]);
    }
    return candidate;
  }

  void add_start(const StartValue& start) {
    ir::Value value;
    const std::string& name = start.names.front();
    value.name = start.kind == ir::ValueKind::input ? unique(name) : name;
    value.kind = start.kind;
    value.aliases.assign(start.names.begin() + 1, start.names.end());
    value.dtype = dtype_of(start.tensor.scalar_type());
    for (int64_t size : start.tensor.sizes()) value.dims.push_back({size, 0});
    value.requires_grad = start.value->requires_grad();
    value.on_host = is_host(start.tensor.device());
    if (start.batch_dim) value.rows = {ir::RowKind::apart, *start.batch_dim, 1, 1, true};
    const ir::ValueId id = graph().add_value(std::move(value));
    share_storage(id, start.tensor);
    if (start.kind == ir::ValueKind::input) graph().inputs.push_back(id);
    meaning_[start.value] = id;
  }

  /// Values whose tensors have one storage refer to the first of them.
  void share_storage(ir::ValueId id, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const void* address = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    graph()[id].storage = storages_.try_emplace(address, id).first->second;
  }

  void add(const jit::Node& node) {
    switch (node.kind()) {
      case jit::prim::Constant:
        return add_constant(node);
      case jit::prim::ListConstruct:
      case jit::prim::TupleConstruct:
        meaning_[node.output()] = list(node);
        return;
      case jit::prim::ListUnpack:
      case jit::prim::TupleUnpack:
        return unpack(node);
      case jit::prim::NumToTensor:
      case jit::aten::Int:
      case jit::aten::Float:
      case jit::aten::Bool:
      case jit::aten::ScalarImplicit:
      case jit::aten::IntImplicit:
      case jit::aten::FloatImplicit:
        return pass_number(node);
      case jit::aten::size:
        return add_size(node);
      case jit::aten::lift_fresh:
        if (fill_with_number(node)) return;
        return add_call(node);
      default:
        return add_call(node);
    }
  }

  void add_constant(const jit::Node& node) {
    const std::optional<c10::IValue> value = jit::toIValue(node.output());
    // Tensors become values when something uses them: their node's place is then known.
    if (value && value->isTensor() && value->toTensor().defined()) {
      if (const auto number = wrapped_number(value->toTensor())) meaning_[node.output()] = *number;
      return;
    }
    if (value && value->isTensor()) {
      meaning_[node.output()] = ir::None{};
      return;
    }
    const auto literal = value ? literal_of(*value) : std::nullopt;
    if (!literal)
      fail(node,
           c10::str("a constant of type ", *node.output()->type(), " cannot be part of the graph"));
    meaning_[node.output()] = *literal;
  }

  ir::ValueId lift(const jit::Value* constant, const at::Tensor& tensor, const jit::Node& user) {
    const auto stray = recording_.constant_names.find(tensor.unsafeGetTensorImpl());
    const bool named = stray != recording_.constant_names.end();
    if (tensor.key_set().has(c10::DispatchKey::Python)) {
      fail(user,
           "takes a tensor that was made in a way the trace cannot follow (for example by "
           "`.data`, from numpy, or kept from an earlier call); make it a buffer or build it "
           "with torch operators inside forward");
    }
    const std::string& module = facts_of(*constant->node()).module;
    ir::Value value;
    value.name = unique(named            ? stray->second
                        : module.empty() ? std::string("constant")
                                         : module + ".constant");
    value.kind = ir::ValueKind::constant;
    value.dtype = dtype_of(tensor.scalar_type());
    for (int64_t size : tensor.sizes()) value.dims.push_back({size, 0});
    value.on_host = is_host(tensor.device());
    value.object = {static_cast<uint32_t>(trace_.capture.objects.size())};
    trace_.capture.objects.emplace_back(tensor);
    const ir::ValueId id = graph().add_value(std::move(value));
    constants_.emplace(constant, id);
    const auto stand_in = recording_.stand_ins.find(constant);
    const at::Tensor& stored = stand_in != recording_.stand_ins.end() ? stand_in->second : tensor;
    if (!cloned_.contains(constant)) {
      share_storage(id, stored);
      return id;
    }
    if (named) {
      fail(user, c10::str("writes to the tensor attribute '", stray->second,
                          "' in place; register it with register_buffer()"));
    }
    return clone(id, facts_of(*constant->node()), stored);
  }

  ir::ValueId clone(ir::ValueId source, const NodeFacts& facts, const at::Tensor& stored) {
    ir::Node node = new_node("aten::clone", facts);
    ir::Value copy = graph()[source];
    copy.name = unique(node.name);
    copy.kind = ir::ValueKind::result;
    copy.object = {};
    copy.storage = {};
    const ir::ValueId id = graph().add_value(std::move(copy));
    node.op = "aten::clone";
    node.inputs = {source, ir::None{}};
    node.outputs = {id};
    graph().add_node(std::move(node));
    share_storage(id, stored);
    return id;
  }

  ir::Argument argument(const jit::Value* value, const jit::Node& user) {
    const auto found = meaning_.find(value);
    if (found != meaning_.end()) return found->second;
    const std::optional<c10::IValue> constant = jit::toIValue(value);
    if (!constant || !constant->isTensor()) {
      fail(user, c10::str("takes '", value->debugName(), "' of type ", *value->type(),
                          ", whose value the trace does not know"));
    }
    const ir::ValueId id = lift(value, constant->toTensor(), user);
    meaning_[value] = id;
    return id;
  }

  ir::ValueId tensor(const jit::Value* value, const jit::Node& user) {
    const ir::Argument meant = argument(value, user);
    if (const auto* id = std::get_if<ir::ValueId>(&meant)) return *id;
    fail(user, c10::str("'", value->debugName(), "' is not a tensor that the trace knows"));
  }

  ir::Argument list(const jit::Node& node) {
    const auto items = [&] {
      std::vector<ir::Argument> found;
      for (const jit::Value* input : node.inputs()) found.push_back(argument(input, node));
      return found;
    }();
    const auto all = [&]<class T>(std::vector<T> typed) -> std::optional<ir::Argument> {
      for (const ir::Argument& item : items) {
        const T* value = std::get_if<T>(&item);
        if (value == nullptr) return std::nullopt;
        typed.push_back(*value);
      }
      return typed;
    };
    const auto list_type = node.output()->type()->cast<c10::ListType>();
    const auto element = list_type ? list_type->getElementType() : c10::TensorType::get();
    if (element->isSubtypeOf(*c10::NumberType::get()) ||
        element->kind() == c10::TypeKind::BoolType) {
      const bool bools = element->kind() == c10::TypeKind::BoolType;
      const bool floats = element->kind() == c10::TypeKind::FloatType;
      const auto typed = bools    ? all(std::vector<bool>{})
                         : floats ? all(std::vector<double>{})
                                  : all(std::vector<ir::AffineInt>{});
      if (typed) return *typed;
    } else {
      ir::ValueList values;
      for (const ir::Argument& item : items) {
        const auto* id = std::get_if<ir::ValueId>(&item);
        if (id == nullptr && !std::holds_alternative<ir::None>(item)) break;
        values.values.push_back(id != nullptr ? *id : ir::ValueId{});
      }
      if (values.values.size() == items.size()) return values;
    }
    fail(node, c10::str("a list of type ", *node.output()->type(), " mixes kinds of elements"));
  }

  void unpack(const jit::Node& node) {
    const auto found = meaning_.find(node.input());
    if (found == meaning_.end()) return;  // results of a call, added with it
    const auto* values = std::get_if<ir::ValueList>(&found->second);
    if (values == nullptr || values->values.size() != node.outputs().size()) return;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      if (values->values[i].valid()) meaning_[node.outputs()[i]] = values->values[i];
    }
  }

  /// Conversions between numbers and tensors: the number itself, which is a literal here.
  void pass_number(const jit::Node& node) {
    if (const auto known = recording_.numbers.find(node.input(0));
        known != recording_.numbers.end()) {
      meaning_[node.output()] = literal_of(known->second).value();
      return;
    }
    const ir::Argument meant = argument(node.input(0), node);
    if (std::holds_alternative<ir::ValueId>(meant)) {
      fail(node,
           "turns the values of a tensor into a Python number; a captured model cannot "
           "depend on them");
    }
    meaning_[node.output()] = meant;
  }

  /// `x[i] = 0.5`, which torch up to 2.14 records as a fill with a constant made of the number.
  bool fill_with_number(const jit::Node& node) {
    const auto& uses = node.output()->uses();
    const bool fills = std::ranges::all_of(uses, [](const jit::Use& use) {
      return use.user->kind() == jit::aten::fill_ && use.offset == 1;
    });
    const std::optional<c10::IValue> made = jit::toIValue(node.input(0));
    if (!fills || !made || !made->isTensor()) return false;
    const at::Tensor& tensor = made->toTensor();
    if (recording_.constant_names.contains(tensor.unsafeGetTensorImpl())) return false;
    const auto number = number_of(tensor);
    if (number) meaning_[node.output()] = *number;
    return number.has_value();
  }

  /// A size that the model asked for: known, as everything is traced with real sizes.
  void add_size(const jit::Node& node) {
    const auto& dims = graph()[tensor(node.input(0), node)].dims;
    if (node.inputs().size() == 1) {
      meaning_[node.output()] = dims;
      return;
    }
    const ir::Argument dim = argument(node.input(1), node);
    const auto* index = std::get_if<ir::AffineInt>(&dim);
    if (index == nullptr) fail(node, "asks for the size of a dimension that is not a number");
    const int64_t count = static_cast<int64_t>(dims.size());
    meaning_[node.output()] = dims.at(static_cast<size_t>((index->fixed + count) % count));
  }

  ir::Node new_node(const std::string& op, const NodeFacts& facts) {
    ir::Node node;
    const size_t colons = op.rfind("::");
    const std::string short_name = colons == std::string::npos ? op : op.substr(colons + 2);
    std::string path = facts.module.empty() ? short_name : facts.module + "." + short_name;
    std::ranges::replace(path, ':', '_');  // of operators, and of keys of an nn.ModuleDict
    const int count = counts_[path]++;
    node.name = count == 0 ? path : c10::str(path, "_", count);
    node.module = facts.module;
    node.source = facts.source;
    node.grad_enabled = facts.grad_enabled;
    return node;
  }

  void add_call(const jit::Node& node) {
    const NodeFacts facts = facts_of(node);
    const bool by_torch = node.kind() == jit::prim::PythonOp;
    const bool python = by_torch || node.kind() == c10::Symbol::fromQualString(kPythonNode);
    const bool scripted = node.kind() == c10::Symbol::fromQualString(kScriptedNode);
    const c10::FunctionSchema* schema = nullptr;
    ir::Node made;
    if (python || scripted) {
      if (!node.hasAttribute(c10::Symbol::attr(kCallIndex))) {
        fail(node, c10::str("calls the autograd function ",
                            static_cast<const jit::PythonOp&>(node).name(),
                            " by an apply() that RaNNC does not see, so its backward would be lost."
                            "\n  Call apply() of the class where it is used."));
      }
      const ObjectCall& call =
          recording_.calls.at(static_cast<size_t>(node.i(c10::Symbol::attr(kCallIndex))));
      made = new_node(call.op, facts);
      made.kind = python ? ir::OpKind::python : ir::OpKind::scripted;
      made.op = call.op;
      made.like = same_operator(made.op);
      made.object = {static_cast<uint32_t>(trace_.capture.objects.size())};
      trace_.capture.objects.push_back(call.object);
    } else {
      schema = schema_of(node);
      if (schema == nullptr) {
        fail(node, c10::str("calls ", node.kind().toQualString(),
                            ", which is not an operator that a graph can hold"));
      }
      made = new_node(schema->name(), facts);
      made.op = schema->overload_name().empty() ? schema->name()
                                                : schema->name() + "." + schema->overload_name();
      made.like = same_operator(made.op);
    }
    for (const jit::Value* input : node.inputs()) made.inputs.push_back(argument(input, node));
    if (made.op == "aten::fill_.Tensor" && !std::holds_alternative<ir::ValueId>(made.inputs[1]))
      made.op = "aten::fill_.Scalar";
    add_writes(made, schema, facts);
    add_results(made, node, facts);
    if (const auto* id = made.inputs.empty() ? nullptr : std::get_if<ir::ValueId>(&made.inputs[0]))
      name_squeezed(made, graph()[*id].dims);
    graph().add_node(std::move(made));
  }

  void add_writes(ir::Node& made, const c10::FunctionSchema* schema, const NodeFacts& facts) {
    std::set<size_t> written;
    if (schema != nullptr) {
      const auto& formals = schema->arguments();
      RANNC_CHECK(formals.size() >= made.inputs.size(),
                  made.op + " has more operands than its schema says");
      for (size_t i = 0; i < made.inputs.size(); ++i) {
        if (formals[i].alias_info() != nullptr && formals[i].alias_info()->isWrite()) {
          written.insert(i);
        }
      }
      for (size_t i : written_buffers(*schema, made.inputs)) written.insert(i);
    }
    const auto add_write = [&](ir::ValueId id) {
      made.writes.push_back(id);
      writes_.insert(graph()[id].storage);
    };
    for (size_t i = 0; i < made.inputs.size(); ++i) {
      const auto* id = std::get_if<ir::ValueId>(&made.inputs[i]);
      const auto* ids = std::get_if<ir::ValueList>(&made.inputs[i]);
      const bool by_object = id != nullptr && wrote(facts, *id);
      if (!by_object && !written.contains(i)) continue;
      if (id != nullptr) add_write(*id);
      if (ids == nullptr) continue;
      for (ir::ValueId item : ids->values) {
        if (item.valid()) add_write(item);
      }
    }
  }

  bool wrote(const NodeFacts& facts, ir::ValueId id) const {
    return std::ranges::any_of(facts.written, [&](const at::Tensor& tensor) {
      const void* address = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      const auto found = storages_.find(address);
      return found != storages_.end() && found->second == trace_.capture.graph[id].storage;
    });
  }

  static std::vector<const jit::Value*> flattened(const jit::Node& node) {
    std::vector<const jit::Value*> results;
    for (const jit::Value* output : node.outputs()) {
      const bool tuple = output->type()->kind() == c10::TypeKind::TupleType;
      if (!tuple && output->type()->kind() != c10::TypeKind::ListType) {
        results.push_back(output);
        continue;
      }
      for (const jit::Use& use : output->uses()) {
        if (use.user->kind() != (tuple ? jit::prim::TupleUnpack : jit::prim::ListUnpack)) continue;
        for (const jit::Value* item : use.user->outputs()) {
          // Of a function's results that are no tensors, the tracer knows no shape.
          const auto type = item->type()->cast<c10::TensorType>();
          if (!tuple || (type && type->scalarType())) results.push_back(item);
        }
        break;
      }
    }
    return results;
  }

  /// A tensor made without gradient has one once something that has is written into it:
  /// `y = torch.zeros_like(x); y[:, 0] = weight * x[:, 0]`.
  static bool requires_grad_now(const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  }

  void add_results(ir::Node& made, const jit::Node& node, const NodeFacts& facts) {
    const std::vector<const jit::Value*> results = flattened(node);
    const bool seen = facts.outputs.size() == results.size();
    for (size_t i = 0; i < results.size(); ++i) {
      const auto type = results[i]->type()->cast<c10::TensorType>();
      const auto sizes = type ? type->sizes().concrete_sizes() : std::nullopt;
      if (!sizes || !type->scalarType()) {
        made.outputs.push_back({});  // an undefined tensor
        continue;
      }
      ir::Value value;
      value.name = unique(results.size() == 1 ? made.name : c10::str(made.name, ":", i));
      value.dtype = dtype_of(*type->scalarType());
      for (int64_t size : *sizes) value.dims.push_back({size, 0});
      value.requires_grad = ir::is_floating(value.dtype) &&
                            (facts.requires_grad.value_or(type->requiresGrad().value_or(false)) ||
                             (seen && requires_grad_now(facts.outputs[i])));
      value.on_host = is_host(type->device().value_or(c10::kCPU));
      const ir::ValueId id = graph().add_value(std::move(value));
      if (seen) {
        share_storage(id, facts.outputs[i]);
      } else if (const auto* self = std::get_if<ir::ValueId>(&made.inputs.at(0));
                 self != nullptr && made.op == "aten::contiguous") {
        // Recorded by the Python binding, without a call, when the tensor is contiguous already.
        graph()[id].storage = graph()[*self].storage;
      }
      made.outputs.push_back(id);
      meaning_[results[i]] = id;
    }
  }

  const Recording& recording_;
  const std::set<const jit::Value*>& cloned_;
  Trace trace_;
  std::unordered_map<const jit::Value*, ir::Argument> meaning_;
  std::unordered_map<const jit::Value*, ir::ValueId> constants_;
  std::unordered_map<const void*, ir::ValueId> storages_;
  std::set<ir::ValueId> writes_;  ///< storages that some node writes
  std::set<std::string> taken_;
  std::map<std::string, int> repeats_;
  std::map<std::string, int> counts_;
  bool on_accelerator_ = false;  ///< some tensor is
};

}  // namespace

std::string place(const std::string& module, const ir::SourceLine& source) {
  const std::string path = module.empty() ? "the model" : "'" + module + "'";
  return source.line == 0 ? path : c10::str(path, " (", source.file, ":", source.line, ")");
}

Trace convert(const Recording& recording, const std::string& name, int64_t rows) {
  std::set<const jit::Value*> cloned;
  Converter first(recording, cloned);
  Trace trace = first.run(name, rows);
  cloned = first.written_constants();
  return cloned.empty() ? trace : Converter(recording, cloned).run(name, rows);
}

}  // namespace rannc::frontend
