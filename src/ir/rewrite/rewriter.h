#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::ir {

/// What a new node gives.
struct NewResult {
  DType dtype = DType::float32;
  std::vector<AffineInt> dims;
  bool requires_grad = false;
};

/// Makes a copy of some node a call of a registered operator; whoever makes it sets its operands.
void set_operator(Node& node, std::string op);

/// Copies a graph node by node, with new nodes where they are needed. Values keep their ids; those
/// of new nodes come after them.
class Rewriter {
 public:
  explicit Rewriter(const Graph& graph);

  [[nodiscard]] const Value& operator[](ValueId id) const { return result_[id]; }

  void keep(Node node) { result_.add_node(std::move(node)); }
  /// A new node, in the module and at the source line of `origin`, named "ORIGIN.role".
  ValueId call(const Node& origin, std::string_view role, std::string op,
               std::vector<Argument> inputs, NewResult result);
  /// The same for an operator that gives a view of its first operand.
  ValueId view(const Node& origin, std::string_view role, std::string op,
               std::vector<Argument> inputs, NewResult result);
  /// The same as call() for a value that is there already and has lost its node.
  void call_into(ValueId result, const Node& origin, std::string op, std::vector<Argument> inputs);
  /// `value` in another dtype; itself when it has it.
  ValueId cast(const Node& origin, std::string_view role, ValueId value, DType dtype);

  [[nodiscard]] Graph take() { return std::move(result_); }

 private:
  Graph result_;
  std::unordered_set<std::string> names_;
};

/// "name", or "name_2" and so on when `taken` has it; adds it there.
[[nodiscard]] std::string unique_name(const std::string& name,
                                      std::unordered_set<std::string>& taken);
/// Names of all values and nodes.
[[nodiscard]] std::unordered_set<std::string> names_in(const Graph& graph);

/// The same graph with its values numbered in the order of the text form: results as nodes make
/// them, after everything else.
[[nodiscard]] Graph in_order(const Graph& graph);

/// Torch's number of a dtype, as operators take it.
[[nodiscard]] AffineInt torch_number(DType dtype);
/// The dtype to reduce numbers of this one in: at least float32.
[[nodiscard]] DType wide(DType dtype);

}  // namespace rannc::ir
