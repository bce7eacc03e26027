#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rannc/ir/types.h"

namespace rannc::ir {

/// What a node takes, in the order of the operator's schema. Sizes are literals that may depend on
/// the rows of the batch, so a graph has no shape arithmetic and runs at any batch size.
struct None {
  friend bool operator==(const None&, const None&) = default;
};
struct Device {
  /// "cpu", "cuda", without an index: the device that runs the stage; "host": the host beside an
  /// accelerator; "meta": no memory.
  std::string name;
  friend bool operator==(const Device&, const Device&) = default;
};
/// `values[i]` invalid stands for None inside the list (as in aten::index).
struct ValueList {
  std::vector<ValueId> values;
  friend bool operator==(const ValueList&, const ValueList&) = default;
};
using Argument =
    std::variant<None, ValueId, ValueList, AffineInt, double, bool, std::string, Device,
                 std::vector<AffineInt>, std::vector<double>, std::vector<bool>>;

enum class ValueKind { input, parameter, buffer, constant, result };
[[nodiscard]] std::string_view name(ValueKind kind);

/// A tensor. Every value is one: list and tuple results are flattened into several values.
struct Value {
  std::string name;  ///< unique in the graph; parameters and buffers: their full module path
  ValueKind kind = ValueKind::result;
  DType dtype = DType::float32;
  std::vector<AffineInt> dims;
  bool requires_grad = false;
  /// On the host, where the model is on an accelerator.
  bool on_host = false;

  /// Set by the front end for inputs, derived by infer_rows() for results.
  Rows rows;
  /// Other names of the same tensor: tied parameters and buffers. Not including `name`.
  std::vector<std::string> aliases;
  /// The value whose storage this one shares (views, in-place results): the first of them in the
  /// graph; itself when it shares none.
  ValueId storage;
  ObjectId object;  ///< constants only
  NodeId producer;  ///< results only

  [[nodiscard]] int64_t bytes(int64_t row_count) const;
  friend bool operator==(const Value&, const Value&) = default;
};

/// Whether slices of dimension `rows.dim` are the rows of the batch: always when they are apart,
/// and also for a mixed value with just one dimension of as many entries as there are rows. There,
/// a row depends on the others, but is still the row that its rank asked for.
[[nodiscard]] bool has_row_dimension(const Value& value);

enum class OpKind {
  dispatcher,  ///< `op` is "aten::add.Tensor": name and overload of a registered operator
  scripted,    ///< a @torch.jit.script function; `object` is in the side table
  python,      ///< a custom torch.autograd.Function; `object` is in the side table
};
[[nodiscard]] std::string_view name(OpKind kind);

struct SourceLine {
  std::string file;  ///< as Python reports it
  int line = 0;
  friend bool operator==(const SourceLine&, const SourceLine&) = default;
};
/// "model.py:12", or "unknown source" when the front end gave none.
[[nodiscard]] std::string place(const SourceLine& source);

struct Node {
  std::string name;  ///< unique; module path and operator, "layers.3.attn.linear_1"; without ':'
  OpKind kind = OpKind::dispatcher;
  std::string op;
  /// The operator of torch's own that computes the same, where `op` is a library's name for it.
  std::string like;
  ObjectId object;
  std::vector<Argument> inputs;
  /// In the order that the operator returns them, lists flattened. Invalid: an undefined tensor.
  std::vector<ValueId> outputs;
  /// Values whose storage this node writes: in-place operands, buffers updated by batch_norm.
  std::vector<ValueId> writes;
  std::string module;  ///< path of the module whose forward called it; "" for the root
  SourceLine source;
  bool grad_enabled = true;  ///< grad mode when it ran in the model
  /// Not linear in a mean over the batch, and yet computed from each share's own: what the shares
  /// give is averaged by their rows, which is not what the whole batch would give.
  bool by_share = false;
  /// A batch normalisation in training that takes the statistics of the whole batch: all replicas
  /// of its stage put theirs together, and the batch is one micro-batch.
  bool whole_batch = false;
  friend bool operator==(const Node&, const Node&) = default;
};
/// The operator whose rules for rows and costs hold for a node: `like`, else `op`.
[[nodiscard]] const std::string& known_op(const Node& node);
/// "module 'layers.3', model.py:12": where in the model a node was called.
[[nodiscard]] std::string module_place(const Node& node);

/// A model's forward pass: tensors and the operators between them, in the order that Python ran
/// them (which is topological, and the order in which in-place writes take effect).
class Graph {
 public:
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<ValueId> inputs;   ///< kind `input`, in the order of the flattened call arguments
  std::vector<ValueId> outputs;  ///< may repeat a value and may name inputs or parameters

  [[nodiscard]] const Value& operator[](ValueId id) const { return values.at(id.index); }
  [[nodiscard]] Value& operator[](ValueId id) { return values.at(id.index); }
  [[nodiscard]] const Node& operator[](NodeId id) const { return nodes.at(id.index); }
  [[nodiscard]] Node& operator[](NodeId id) { return nodes.at(id.index); }

  /// Appends and returns the id; `storage` defaults to the value itself.
  ValueId add_value(Value value);
  /// Appends the node and sets `producer` of its outputs.
  NodeId add_node(Node node);

  /// Ids of the tensors that a node reads, in argument order, lists flattened, Nones left out;
  /// repeated when used twice.
  [[nodiscard]] std::vector<ValueId> operands(NodeId id) const;
  /// For each value, the nodes that read it, ascending, each once. O(graph).
  [[nodiscard]] std::vector<std::vector<NodeId>> users() const;

  [[nodiscard]] std::optional<NodeId> find_node(const std::string& node_name) const;  ///< O(nodes)
  [[nodiscard]] std::optional<ValueId> find_value(
      const std::string& value_name) const;  ///< O(values)

  friend bool operator==(const Graph&, const Graph&) = default;
};

/// Throws InternalError that names the node or value: dangling ids, a use before its definition,
/// duplicate names, a result without producer, aliases of aliases, a node name with ':'.
void verify(const Graph& graph);

}  // namespace rannc::ir
