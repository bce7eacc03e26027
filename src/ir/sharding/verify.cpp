#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/rows/row_call.h"
#include "rannc/ir/shard.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

/// What the places have of a value.
enum class Kind {
  replicated,
  cut,      ///< parts along one dimension
  partial,  ///< parts of a sum
  largest,  ///< parts of a maximum
  own,      ///< whole, but computed from numbers of the place: indices into its part
  picked,   ///< by such indices: wrong until those of other places are set to 0
};
struct Form {
  Kind kind = Kind::replicated;
  int dim = 0;  ///< of a cut one
  friend bool operator==(const Form&, const Form&) = default;
};

const std::set<std::string_view> kElementwise{
    "abs",         "add",         "addcdiv",    "addcmul",    "bitwise_and", "bitwise_not",
    "bitwise_or",  "ceil",        "celu",       "clamp",      "clamp_max",   "clamp_min",
    "clip",        "clone",       "contiguous", "copy",       "cos",         "detach",
    "div",         "divide",      "elu",        "empty_like", "eq",          "erf",
    "exp",         "exp2",        "expm1",      "fill",       "floor",       "fmod",
    "full_like",   "ge",          "gelu",       "gt",         "hardsigmoid", "hardswish",
    "hardtanh",    "isfinite",    "isinf",      "isnan",      "le",          "leaky_relu",
    "lerp",        "lift_fresh",  "log",        "log1p",      "log2",        "log_sigmoid",
    "logical_and", "logical_not", "logical_or", "lt",         "masked_fill", "maximum",
    "minimum",     "mish",        "mul",        "multiply",   "nan_to_num",  "ne",
    "neg",         "ones_like",   "pow",        "reciprocal", "relu",        "relu6",
    "remainder",   "round",       "rsqrt",      "rsub",       "selu",        "sgn",
    "sigmoid",     "sign",        "silu",       "sin",        "sinh",        "softplus",
    "sqrt",        "square",      "sub",        "tan",        "tanh",        "threshold",
    "to",          "true_divide", "trunc",      "type_as",    "where",       "xlogy",
    "zero",        "zeros_like",  "_to_copy",   "alias",      "dropout",     "feature_dropout",
    "__and__",     "__or__",      "__xor__"};
/// The same elements, or some of them, in another order or under other dimensions.
const std::set<std::string_view> kArranging{"_reshape_alias", "_unsafe_view",
                                            "broadcast_to",   "cat",
                                            "chunk",          "concat",
                                            "concatenate",    "constant_pad_nd",
                                            "expand",         "expand_as",
                                            "flatten",        "mT",
                                            "movedim",        "pad",
                                            "permute",        "repeat_interleave",
                                            "reshape",        "reshape_as",
                                            "select",         "slice",
                                            "split",          "split_with_sizes",
                                            "squeeze",        "stack",
                                            "swapaxes",       "t",
                                            "transpose",      "tril",
                                            "triu",           "unbind",
                                            "unflatten",      "unsafe_chunk",
                                            "unsafe_split",   "unsqueeze",
                                            "view",           "view_as"};
/// Of a partial value these are partial, too.
const std::set<std::string_view> kLinear{"alias", "clone", "contiguous", "detach",
                                         "neg",   "sum",   "to",         "_to_copy"};
const std::set<std::string_view> kAlong{"_log_softmax", "_safe_softmax", "_softmax",
                                        "log_softmax",  "softmax",       "cumsum"};
const std::set<std::string_view> kReducing{"sum", "mean", "amax",   "amin",
                                           "all", "any",  "argmax", "logsumexp"};

class Verifier {
 public:
  Verifier(const Graph& whole, const std::vector<ShardedGraph>& places, size_t place)
      : places_(places), mine_(places[place]), graph_(mine_.graph), forms_(graph_.values.size()) {
    for (const Value& value : whole.values) whole_dims_.emplace(value.name, &value.dims);
  }

  void run() {
    for (const Part& part : mine_.parts) cut_[part.name] = part.dim;
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const Value& value = graph_.values[index];
      const auto found = cut_.find(value.name);
      if (value.kind != ValueKind::result && found != cut_.end()) {
        forms_[index] = {Kind::cut, found->second};
      }
    }
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) forward(NodeId{index});
    for (const ValueId output : graph_.outputs) {
      require(form(output).kind == Kind::replicated, "outputs", "gives a part of an output");
    }
    check_gradients();
  }

 private:
  [[noreturn]] static void fail(const std::string& node, const std::string& what) {
    throw InternalError(fmt::format("node '{}' of a sharded graph {}", node, what));
  }
  static void require(bool holds, const std::string& node, const std::string& what) {
    if (!holds) fail(node, what);
  }
  [[nodiscard]] Form form(ValueId value) const { return forms_[value.index]; }
  [[nodiscard]] bool is(ValueId value, Kind kind) const { return form(value).kind == kind; }
  [[nodiscard]] int rank(ValueId value) const {
    return static_cast<int>(graph_[value].dims.size());
  }

  void forward(NodeId id) {
    const Node& node = graph_[id];
    const std::vector<ValueId> operands = graph_.operands(id);
    const auto any = [&](Kind kind) {
      return std::ranges::any_of(operands, [&](ValueId each) { return is(each, kind); });
    };
    for (size_t index = 0; index < node.outputs.size(); ++index) {
      const ValueId output = node.outputs[index];
      if (!output.valid()) continue;
      Form found;
      if (node.op.starts_with("group::")) {
        found = collective(node, operands.front());
      } else if (any(Kind::own) || any(Kind::picked)) {
        found = by_own_indices(id, output);
      } else if (any(Kind::largest)) {
        fail(node.name, "uses a maximum of parts as the whole one");
      } else if (any(Kind::partial)) {
        found = of_partial(id);
      } else if (any(Kind::cut)) {
        found = of_parts(id, output);
      } else if (differs_between_places(id)) {
        found = {Kind::own, 0};
      }
      check_size(node, output, found);
      forms_[output.index] = found;
    }
  }

  /// The whole model's sizes say which dimension a value is cut along, whatever made it.
  std::optional<Form> by_size(ValueId value) const {
    const auto found = whole_dims_.find(graph_[value].name);
    if (found == whole_dims_.end() || found->second->size() != graph_[value].dims.size()) return {};
    Form form;
    for (size_t dim = 0; dim < found->second->size(); ++dim) {
      if ((*found->second)[dim] == graph_[value].dims[dim]) continue;
      if (form.kind == Kind::cut) return {};
      form = {Kind::cut, static_cast<int>(dim)};
    }
    return form;
  }
  void check_size(const Node& node, ValueId output, Form found) const {
    const std::optional<Form> sizes = by_size(output);
    if (!sizes) return;
    require(found == *sizes || (sizes->kind != Kind::cut && found.kind != Kind::cut), node.name,
            "is cut otherwise than its sizes say");
  }

  Form collective(const Node& node, ValueId operand) const {
    const Kind kind = form(operand).kind;
    const auto dim = [&] { return static_cast<int>(std::get<AffineInt>(node.inputs[1]).fixed); };
    if (node.op == "group::sum") {
      require(kind == Kind::partial, node.name, "sums what is not partial");
    } else if (node.op == "group::reduce_scatter") {
      require(kind == Kind::partial, node.name, "sums what is not partial");
      return {Kind::cut, dim()};
    } else if (node.op == "group::max") {
      require(kind == Kind::largest, node.name, "takes the maximum of what is none of parts");
    } else if (node.op.starts_with("group::all_gather")) {
      require(form(operand) == Form{Kind::cut, dim()}, node.name, "gathers what is not cut so");
    } else {
      require(kind == Kind::replicated, node.name, "takes parts as the whole");
      if (node.op == "group::slice") return {Kind::cut, dim()};
    }
    return {};
  }

  /// Whether numbers among the arguments are others on another place.
  bool differs_between_places(NodeId id) const {
    return std::ranges::any_of(places_, [&](const ShardedGraph& other) {
      return other.graph.nodes[id.index].inputs != graph_[id].inputs;
    });
  }

  Form by_own_indices(NodeId id, ValueId output) const {
    const Node& node = graph_[id];
    const ArgumentsOnly no_rows;
    const RowCall call(graph_, id, no_rows);
    const std::string_view base = call.base();
    const std::vector<ValueId> operands = graph_.operands(id);
    if (base == "embedding" || base == "gather") {
      const int dim = base == "gather" ? static_cast<int>(call.integer(1, 0).fixed) : 0;
      require(form(operands[0]) == Form{Kind::cut, dim} && is(operands[1], Kind::own), node.name,
              "picks by indices of another part");
      return {Kind::picked, 0};
    }
    if (is(operands[0], Kind::picked)) {
      if (base == "squeeze" && operands.size() == 1) return {Kind::picked, 0};
      const auto* value = std::get_if<AffineInt>(&call.argument(2));
      const bool zeroed = base == "masked_fill" && is(operands[1], Kind::own) && value != nullptr &&
                          *value == AffineInt{};
      require(zeroed, node.name, "uses what other places' indices have picked");
      return {Kind::partial, 0};
    }
    const bool simple = kElementwise.contains(base) || base == "unsqueeze";
    const auto fits = [&](ValueId each) {
      return is(each, Kind::own) || is(each, Kind::replicated);
    };
    require(simple && std::ranges::all_of(operands, fits) && !graph_[output].requires_grad,
            node.name, "uses numbers of one place as if all had them");
    return {Kind::own, 0};
  }

  Form of_partial(NodeId id) const {
    const Node& node = graph_[id];
    const std::string_view base = base_name(known_op(node));
    const std::vector<ValueId> operands = graph_.operands(id);
    const auto partial = [&](ValueId each) { return is(each, Kind::partial); };
    const bool all = std::ranges::all_of(operands, partial);
    const bool scaled = operands.size() == 2 && partial(operands[0]) &&
                        is(operands[1], Kind::replicated) && (base == "mul" || base == "div");
    const bool added = all && (base == "add" || base == "sub") && operands.size() == 2;
    const bool number = operands.size() == 1 && (base == "mul" || base == "div");
    const bool linear =
        operands.size() == 1 && (kLinear.contains(base) || kArranging.contains(base));
    require(scaled || added || number || linear, node.name,
            "uses a partial value otherwise than linearly");
    return {Kind::partial, 0};
  }

  Form of_parts(NodeId id, ValueId output) const {
    const ArgumentsOnly no_rows;
    const RowCall call(graph_, id, no_rows);
    const std::string_view base = call.base();
    if (kElementwise.contains(base)) return elementwise(id, output);
    if (kArranging.contains(base)) return arranged(id, call, output);
    if (kAlong.contains(base)) {
      const Form from = form(call.tensor(0));
      require(call.dimension(1, rank(call.tensor(0)), -1) != from.dim, graph_[id].name,
              "needs the whole of what is cut");
      return from;
    }
    if (kReducing.contains(base)) return reduced(id, call);
    if (base == "linear")
      return product(id, call.tensor(0), call.tensor(1), call.tensor(2), output, true);
    if (base == "mm" || base == "bmm" || base == "matmul" || base == "mv") {
      return product(id, call.tensor(0), call.tensor(1), {}, output, false);
    }
    if (base == "addmm" || base == "baddbmm") {
      return product(id, call.tensor(1), call.tensor(2), call.tensor(0), output, false);
    }
    if (base == "embedding") {
      const Form table = form(call.tensor(0));
      require(table.kind != Kind::cut || table.dim == 1, graph_[id].name,
              "looks up whole indices in a part");
      return {Kind::cut, table.kind == Kind::cut ? rank(output) - 1 : form(call.tensor(1)).dim};
    }
    if (base == "layer_norm" || base == "rms_norm") {
      const Form x = form(call.tensor(0));
      const int apart = rank(output) - static_cast<int>(call.integers(1).size());
      require(x.kind == Kind::cut && x.dim < apart, graph_[id].name, "normalises over a part");
      return x;
    }
    if (base == "scaled_dot_product_attention") return attention(id, call);
    if (base.find("conv") != std::string_view::npos) return convolution(id, call);
    if (base == "batch_norm" || base.find("pool") != std::string_view::npos ||
        base.starts_with("upsample")) {
      const Form x = form(call.tensor(0));
      const bool fits = x.kind == Kind::cut && (x.dim == 1 || (x.dim == 0 && base != "batch_norm"));
      for (const ValueId each : graph_.operands(id)) {
        const bool same = each == call.tensor(0) || form(each) == Form{Kind::cut, 0};
        require(same && fits, graph_[id].name, "needs the whole of what is cut");
      }
      return x;
    }
    if (base == "einsum") return by_size(output).value_or(Form{Kind::partial, 0});
    // Made of one number: what is cut of it is what its sizes say.
    if (base == "new_ones" || base == "new_zeros") return by_size(output).value_or(Form{});
    fail(graph_[id].name, fmt::format("needs the whole of what is cut ({})", graph_[id].op));
  }

  /// Aligned from the right; what is not cut is 1 there, or does not reach it.
  Form elementwise(NodeId id, ValueId output) const {
    int from_right = 0;
    for (const ValueId each : graph_.operands(id)) {
      if (is(each, Kind::cut)) from_right = rank(each) - form(each).dim;
    }
    for (const ValueId each : graph_.operands(id)) {
      const int dim = rank(each) - from_right;
      const bool here = dim >= 0 && graph_[each].dims[static_cast<size_t>(dim)] != AffineInt{1, 0};
      const bool right = is(each, Kind::cut) ? form(each).dim == dim : !here;
      require(right, graph_[id].name, "puts a part beside a whole");
    }
    return {Kind::cut, rank(output) - from_right};
  }

  Form arranged(NodeId id, const RowCall& call, ValueId output) const {
    const std::string_view base = call.base();
    // Of no elements a tensor may be whole, and of fewer dimensions than others.
    const auto is_nothing = [&](ValueId each) {
      return base.find("cat") != std::string_view::npos && !is(each, Kind::cut) &&
             std::ranges::count(graph_[each].dims, AffineInt{}) > 0;
    };
    std::vector<ValueId> operands = graph_.operands(id);
    std::erase_if(operands, is_nothing);
    require(!operands.empty(), graph_[id].name, "puts a part beside a whole");
    const Form from = form(operands.front());
    if (base == "select" || base == "unbind") {
      const int gone = call.dimension(1, rank(call.tensor(0)), 0);
      require(gone != from.dim, graph_[id].name, "takes one element of a part");
      return {Kind::cut, from.dim - (from.dim > gone ? 1 : 0)};
    }
    for (const ValueId each : operands) {
      require(is(each, Kind::cut), graph_[id].name, "puts a part beside a whole");
    }
    if (base == "transpose" || base == "swapaxes") {
      const int a = call.dimension(1, rank(output), 0);
      const int b = call.dimension(2, rank(output), 0);
      return {Kind::cut, from.dim == a ? b : from.dim == b ? a : from.dim};
    }
    if (base == "permute") {
      const std::vector<int> order = call.dimensions(1, rank(output), 0);
      const auto at = std::ranges::find(order, from.dim);
      return {Kind::cut, static_cast<int>(at - order.begin())};
    }
    const std::optional<Form> sizes = by_size(output);
    require(sizes && sizes->kind == Kind::cut, graph_[id].name, "gives a whole of parts");
    return *sizes;
  }

  Form reduced(NodeId id, const RowCall& call) const {
    const ValueId from = call.tensor(0);
    const int cut = form(from).dim;
    const bool named =
        !call.integers(1).empty() || std::holds_alternative<AffineInt>(call.argument(1));
    const std::vector<int> over = call.dimensions(1, rank(from), 0);
    const bool goes = !named || std::ranges::find(over, cut) != over.end();
    if (!goes) {
      const bool keeps = call.boolean(2, false);
      const auto before = std::ranges::count_if(over, [&](int dim) { return dim < cut; });
      return {Kind::cut, keeps ? cut : cut - static_cast<int>(before)};
    }
    if (call.base() == "sum") return {Kind::partial, 0};
    require(call.base() == "amax" && !graph_[graph_[id].outputs[0]].requires_grad, graph_[id].name,
            "needs the whole of what is cut");
    return {Kind::largest, 0};
  }

  /// a [.., n, k] by b [.., k, m]; `turned`: by b [m, k].
  Form product(NodeId id, ValueId a, ValueId b, ValueId bias, ValueId y, bool turned) const {
    const std::string& name = graph_[id].name;
    const bool vector = rank(b) == 1;
    const int inner_b = turned || vector ? rank(b) - 1 : rank(b) - 2;
    const int outer_b = turned ? 0 : rank(b) - 1;
    const bool a_inner = is(a, Kind::cut) && form(a).dim == rank(a) - 1;
    const bool b_inner = is(b, Kind::cut) && form(b).dim == inner_b;
    require(a_inner == b_inner, name, "multiplies a part by a whole");
    const bool has_bias = bias.valid();
    if (a_inner) {
      require(!has_bias, name, "adds its bias to each part of a sum");
      return {Kind::partial, 0};
    }
    if (is(b, Kind::cut) && form(b).dim == outer_b && !vector) {
      require(!is(a, Kind::cut), name, "multiplies parts by parts of another factor");
      const bool same = !has_bias || form(bias) == Form{Kind::cut, rank(bias) - 1};
      require(same, name, "adds a whole bias to a part");
      return {Kind::cut, rank(y) - 1};
    }
    if (turned) return form(a);
    const auto batch = [&](ValueId each) {
      return is(each, Kind::cut) && form(each).dim < rank(each) - 2;
    };
    const bool has_rows = is(a, Kind::cut) && form(a).dim == rank(a) - 2 && !is(b, Kind::cut);
    require(has_rows || (batch(a) && batch(b)), name, "multiplies a part by a whole");
    const int from_right = rank(a) - form(a).dim - (vector ? 1 : 0);
    return {Kind::cut, rank(y) - from_right};
  }

  Form attention(NodeId id, const RowCall& call) const {
    const ValueId query = call.tensor(0);
    const ValueId key = call.tensor(1);
    const ValueId value = call.tensor(2);
    const Form q = form(query);
    const std::string& name = graph_[id].name;
    if (q.kind == Kind::replicated && !is(key, Kind::cut)) {
      require(form(value) == Form{Kind::cut, rank(value) - 1}, name,
              "needs the whole of its values");
      return form(value);
    }
    const bool heads = q.dim < rank(query) - 2 && form(key) == q && form(value) == q;
    const bool queries = q.dim == rank(query) - 2 && !is(key, Kind::cut) && !is(value, Kind::cut) &&
                         !call.boolean(5, false);
    require(q.kind == Kind::cut && (heads || queries), name, "needs whole heads on each place");
    const ValueId mask = call.tensor(3);
    if (!mask.valid()) return q;
    const int dim = rank(mask) - (rank(query) - q.dim);
    const bool here = dim >= 0 && graph_[mask].dims[static_cast<size_t>(dim)] != AffineInt{1, 0};
    require(is(mask, Kind::cut) ? form(mask).dim == dim : !here, name, "masks a part by a whole");
    return q;
  }

  Form convolution(NodeId id, const RowCall& call) const {
    const std::string& name = graph_[id].name;
    const ValueId x = call.tensor(0);
    const Form weight = form(call.tensor(1));
    const ValueId bias = call.tensor(2);
    if (weight.kind != Kind::cut) {
      require(form(x) == Form{Kind::cut, 0}, name, "multiplies a part by a whole");
      return form(x);
    }
    if (weight.dim == 1) {
      require(form(x) == Form{Kind::cut, 1} || graph_[call.tensor(1)].dims[1] != AffineInt{}, name,
              "multiplies a whole by a part");
      require(!bias.valid(), name, "adds its bias to each part of a sum");
      return {Kind::partial, 0};
    }
    const bool fits = !bias.valid() || form(bias) == Form{Kind::cut, 0};
    require(weight.dim == 0 && fits, name, "adds a whole bias to a part");
    return {Kind::cut, 1};
  }

  // --- gradients of replicated values: the same on all places, or parts of a sum ---

  enum class Gradient { none, whole, partial };

  void demand(ValueId value, Gradient gradient, const std::string& by) {
    Gradient& known = gradients_[value.index];
    require(known == Gradient::none || known == gradient, by,
            fmt::format("gives '{}' a partial gradient beside a whole one", graph_[value].name));
    known = gradient;
  }

  void check_gradients() {
    gradients_.assign(graph_.values.size(), Gradient::none);
    for (const ValueId output : graph_.outputs) {
      if (graph_[output].requires_grad) demand(output, Gradient::whole, "outputs");
    }
    for (uint32_t index = static_cast<uint32_t>(graph_.nodes.size()); index-- > 0;) {
      backward(NodeId{index});
    }
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const Value& value = graph_.values[index];
      require(value.kind == ValueKind::result || gradients_[index] != Gradient::partial, value.name,
              "has a partial gradient that nothing sums");
    }
  }

  void backward(NodeId id) {
    const Node& node = graph_[id];
    Gradient gradient = Gradient::none;
    for (const ValueId output : node.outputs) {
      if (!output.valid() || !graph_[output].requires_grad) continue;
      gradient = is(output, Kind::replicated) ? gradients_[output.index] : Gradient::partial;
    }
    if (gradient == Gradient::none) return;
    if (node.op == "group::sum_gradient") {
      require(gradient == Gradient::partial, node.name, "sums a gradient that is whole");
      gradient = Gradient::whole;
    } else if (node.op == "group::all_gather_sum_gradient") {
      require(gradient == Gradient::partial, node.name, "sums a gradient that is whole");
    } else if (node.op == "group::slice") {
      gradient = Gradient::whole;
    } else if (node.op == "group::sum" || node.op == "group::all_gather") {
      require(gradient == Gradient::whole, node.name, "has a partial gradient that nothing sums");
    }
    for (const ValueId operand : graph_.operands(id)) {
      const bool takes = graph_[operand].requires_grad && is(operand, Kind::replicated);
      if (takes) demand(operand, gradient, node.name);
    }
  }

  const std::vector<ShardedGraph>& places_;
  const ShardedGraph& mine_;
  const Graph& graph_;
  std::vector<Form> forms_;
  std::vector<Gradient> gradients_;
  std::map<std::string, int> cut_;
  std::map<std::string, const std::vector<AffineInt>*> whole_dims_;
};

}  // namespace

void verify_shard(const Graph& whole, const std::vector<ShardedGraph>& places) {
  const auto operators = [](const ShardedGraph& place) {
    std::vector<std::string> names;
    for (const Node& node : place.graph.nodes) names.push_back(node.op);
    return names;
  };
  for (size_t place = 0; place < places.size(); ++place) {
    verify(places[place].graph);
    if (operators(places[place]) != operators(places[0])) {
      throw InternalError(
          fmt::format("places 0 and {} of a sharded graph run other operators", place));
    }
    Verifier(whole, places, place).run();
  }
}

}  // namespace rannc::ir
