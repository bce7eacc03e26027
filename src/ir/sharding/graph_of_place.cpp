#include "ir/sharding/graph_of_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ir/rewrite/rewriter.h"
#include "ir/sharding/decisions.h"
#include "ir/sharding/local_sizes.h"
#include "rannc/ir/draws.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

using sharding::Analysis;
using sharding::ContentId;
using sharding::Cut;
using sharding::Decisions;
using sharding::LocalSizes;
using sharding::Role;

/// Writes the graph of one place.
class Sharder {
 public:
  Sharder(const Graph& graph, const Analysis& analysis, const Cut& cut, int ways, int place)
      : graph_(graph),
        analysis_(analysis),
        decisions_(graph, analysis, cut.factors, cut.held_otherwise, cut.sequences),
        sizes_(graph, analysis, ways, place),
        sequences_(cut.sequences),
        held_(cut.held),
        place_(static_cast<size_t>(place)),
        names_(names_in(graph)) {}

  ShardedGraph run() {
    out_.graph.name = graph_.name;
    versions_.resize(graph_.values.size());
    for (uint32_t index = 0; index < graph_.values.size(); ++index) add_start(ValueId{index});
    for (const ValueId input : graph_.inputs) {
      out_.graph.inputs.push_back(*versions_[input.index].whole);
    }
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      origin_ = NodeId{index};
      add(origin_);
    }
    for (const ValueId output : graph_.outputs) {
      origin_ = graph_[output].producer;
      out_.graph.outputs.push_back(whole(output, output_node()));
    }
    out_.graph = in_order(out_.graph);
    for (uint32_t index = 0; index < graph_.values.size(); ++index) {
      const std::optional<ContentId> along = decisions_.of(ValueId{index});
      if (along && sequences_.contains(*along)) {
        out_.along_sequence.insert(graph_.values[index].name);
      }
    }
    return std::move(out_);
  }

 private:
  void keep_node(Node node) {
    out_.graph.add_node(std::move(node));
    out_.origins.push_back(origin_);
  }

  /// A value of the model's in the graph of this place.
  struct Versions {
    std::optional<ValueId> whole;
    std::optional<ValueId> summed;  ///< whole, for nodes that run on parts: its gradient is summed
    std::optional<std::pair<ContentId, ValueId>> part;
    const Layout* held = nullptr;  ///< of state that is held otherwise than it is used
    ValueId in_layout;             ///< and this place's part of it
  };

  void add_start(ValueId id) {
    const Value& value = graph_[id];
    if (value.kind == ValueKind::result) return;
    const std::optional<ContentId> factor = decisions_.of(id);
    Value made = factor ? sizes_.local_value(id, *factor) : value;
    const Layout* held = factor ? nullptr : layout_of(id);
    if (held != nullptr) {
      auto& size = made.dims[static_cast<size_t>(held->dim)];
      size = {};
      for (const Stretch& stretch : held->stretches[place_]) size.fixed += stretch.size;
    }
    if (value.storage != id) made.storage = version_of_storage(value.storage);
    const bool shares = value.storage != id;
    if (!shares) made.storage = {};
    const ValueId added = out_.graph.add_value(std::move(made));
    if (held != nullptr) {
      versions_[id.index].held = held;
      versions_[id.index].in_layout = added;
      out_.parts.push_back({value.name, held->dim, held->stretches[place_]});
      return;
    }
    if (!factor) {
      versions_[id.index].whole = added;
      return;
    }
    versions_[id.index].part = {*factor, added};
    const int dim = *analysis_.dim(id, *factor);
    out_.parts.push_back({value.name, dim, sizes_.stretches(id, dim, *factor)});
  }

  /// In which places hold parts of state that the graph needs whole; null: they hold the whole.
  const Layout* layout_of(ValueId id) const {
    const Value& value = graph_[id];
    const bool state = value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
    const auto found = state ? held_.find(value.name) : held_.end();
    if (found == held_.end() || found->second.stretches.empty()) return nullptr;
    if (decisions_.is_written(id)) {
      throw ConfigError(fmt::format(
          "'{}' is written by this call, which needs the whole of it, but ranks that compute "
          "layers together hold parts of it, as another call or stage uses it.\n"
          "  Leave tensor_parallel off.",
          value.name));
    }
    return &found->second;
  }

  ValueId version_of_storage(ValueId storage) {
    const Versions& versions = versions_[storage.index];
    if (versions.held != nullptr) return versions.in_layout;
    return versions.part ? versions.part->second : versions.whole.value_or(ValueId{});
  }

  // --- the forms in which nodes take values ---

  Node call(const Node& origin, const std::string& role, std::string op) {
    Node node = origin;
    set_operator(node, std::move(op));
    node.name = unique_name(origin.name + "." + role, names_);
    node.inputs.clear();
    node.outputs.clear();
    node.writes.clear();
    return node;
  }

  ValueId add_node(Node node, Value like, std::vector<AffineInt> dims) {
    like.name = node.name;
    like.kind = ValueKind::result;
    like.dims = std::move(dims);
    like.storage = {};
    like.aliases.clear();
    like.object = {};
    like.producer = {};
    names_.insert(like.name);
    const ValueId id = out_.graph.add_value(std::move(like));
    node.outputs = {id};
    keep_node(std::move(node));
    return id;
  }

  ValueId whole(ValueId id, const Node& user) {
    Versions& versions = versions_[id.index];
    if (versions.whole) return *versions.whole;
    if (versions.held != nullptr) {
      Node node = call(user, "all_gather", "group::all_gather");
      node.inputs = {versions.in_layout, AffineInt{versions.held->dim, 0},
                     sharding::flat(versions.held->stretches)};
      versions.whole = add_node(std::move(node), graph_[id], graph_[id].dims);
      return *versions.whole;
    }
    const auto [factor, part] = versions.part.value();
    const int dim = *analysis_.dim(id, factor);
    Node node = call(user, "all_gather", "group::all_gather");
    node.inputs = {part, AffineInt{dim, 0}, sizes_.pieces(id, dim, factor)};
    const ValueId made = add_node(std::move(node), graph_[id], graph_[id].dims);
    if (!decisions_.is_written(id)) versions.whole = made;
    return made;
  }

  ValueId part(ValueId id, ContentId factor, const Node& user) {
    Versions& versions = versions_[id.index];
    if (versions.part && versions.part->first == factor) return versions.part->second;
    const ValueId all = whole(id, user);
    const int dim = *analysis_.dim(id, factor);
    Node node = call(user, "slice", "group::slice");
    node.inputs = {all, AffineInt{dim, 0}, sizes_.pieces(id, dim, factor)};
    const ValueId made =
        add_node(std::move(node), sizes_.local_value(id, factor), sizes_.of(id, factor));
    if (!decisions_.is_written(id) && !versions.part) versions.part = {factor, made};
    return made;
  }

  /// For a node that runs on parts and takes it whole.
  ValueId summed(ValueId id, const Node& user) {
    if (!graph_[id].requires_grad) return whole(id, user);
    Versions& versions = versions_[id.index];
    if (versions.summed) return *versions.summed;
    Node node;
    if (versions.part && !versions.whole) {
      const auto [factor, part] = *versions.part;
      const int dim = *analysis_.dim(id, factor);
      node = call(user, "all_gather", "group::all_gather_sum_gradient");
      node.inputs = {part, AffineInt{dim, 0}, sizes_.pieces(id, dim, factor)};
    } else {
      const ValueId all = whole(id, user);
      node = call(user, "sum_gradient", "group::sum_gradient");
      node.inputs = {all};
    }
    const ValueId made = add_node(std::move(node), graph_[id], graph_[id].dims);
    if (!decisions_.is_written(id)) versions.summed = made;
    return made;
  }

  // --- nodes ---

  void add(NodeId id) {
    const Node& node = graph_[id];
    const std::optional<ContentId> factor = decisions_.of(id);
    if (!factor) {
      for (const ValueId operand : graph_.operands(id)) {
        const auto& made = versions_[operand.index];
        if (made.part && !made.whole) gathered(id, made.part->first);
        if (made.held != nullptr) out_.gathered.emplace_back(id, graph_[operand].name);
      }
      const auto take = [&](ValueId value) { return whole(value, node); };
      return keep(node, copy_with(node, take), std::nullopt);
    }
    if (analysis_.has_role(id, *factor, Role::exchange)) return exchange(id, *factor);
    const auto take = [&](ValueId value) {
      return analysis_.has(value, *factor) ? part(value, *factor, node) : summed(value, node);
    };
    if (analysis_.has_role(id, *factor, Role::reduced)) return reduce(id, *factor, take);
    if (draws(node)) return drop(id, *factor);
    Node made = copy_with(node, take);
    sizes_.localise(made, node, *factor);
    keep(node, std::move(made), factor);
  }

  /// What is kept of the whole is drawn on every place, alike, as random numbers are told from the
  /// node's name; each place takes its part.
  void drop(NodeId id, ContentId factor) {
    const Node& node = graph_[id];
    const ValueId result = node.outputs.front();
    const ValueId mine = part(std::get<ValueId>(node.inputs[0]), factor, node);
    Value like = graph_[result];
    like.requires_grad = false;
    const ValueId ones = op(node, "ones", "aten::new_ones",
                            {mine, like.dims, None{}, None{}, None{}, None{}}, like, like.dims);
    Node draw = node;
    draw.inputs[0] = ones;
    draw.outputs.clear();
    Value mask = like;
    mask.name = unique_name(node.name + ".mask", names_);
    mask.storage = {};
    mask.producer = {};
    const ValueId kept = out_.graph.add_value(std::move(mask));
    draw.outputs = {kept};
    keep_node(std::move(draw));
    const int dim = *analysis_.dim(result, factor);
    const ValueId own = op(node, "kept", "group::slice",
                           {kept, AffineInt{dim, 0}, sizes_.pieces(result, dim, factor)}, like,
                           sizes_.of(result, factor));
    Node times = call(node, "mul", "aten::mul.Tensor");
    times.inputs = {mine, own};
    memory_.clear();
    times.outputs = {add_result(result, factor)};
    keep_node(std::move(times));
  }

  void gathered(NodeId id, ContentId factor) {
    for (const auto& [each, about] : analysis_.of_parameters()) {
      if (each == factor) out_.gathered.emplace_back(id, about.id);
    }
  }

  template <class Take>
  Node copy_with(const Node& node, const Take& take) {
    Node made = node;
    made.outputs.clear();
    made.writes.clear();
    std::map<ValueId, ValueId> taken;
    const auto once = [&](ValueId value) {
      const auto found = taken.find(value);
      if (found != taken.end()) return found->second;
      return taken.emplace(value, take(value)).first->second;
    };
    for (Argument& argument : made.inputs) {
      if (auto* value = std::get_if<ValueId>(&argument)) *value = once(*value);
      if (auto* list = std::get_if<ValueList>(&argument)) {
        for (ValueId& each : list->values) {
          if (each.valid()) each = once(each);
        }
      }
    }
    for (const ValueId written : node.writes) made.writes.push_back(once(written));
    memory_.clear();
    for (const auto& [before, now] : taken) memory_[graph_[before].storage] = now;
    return made;
  }

  void keep(const Node& node, Node made, std::optional<ContentId> factor) {
    std::vector<ValueId> outputs;
    for (const ValueId output : node.outputs) {
      if (!output.valid()) {
        outputs.emplace_back();
        continue;
      }
      const bool is_part = factor && analysis_.has(output, *factor);
      outputs.push_back(add_result(output, is_part ? factor : std::nullopt));
    }
    made.outputs = outputs;
    keep_node(std::move(made));
  }

  ValueId add_result(ValueId id, std::optional<ContentId> factor) {
    Value made = factor ? sizes_.local_value(id, *factor) : graph_[id];
    const auto memory = memory_.find(made.storage);
    made.storage = made.storage == id || memory == memory_.end()
                       ? ValueId{}
                       : out_.graph[memory->second].storage;
    made.producer = {};
    const ValueId added = out_.graph.add_value(std::move(made));
    if (factor) {
      versions_[id.index].part = {*factor, added};
    } else {
      versions_[id.index].whole = added;
    }
    return added;
  }

  /// A bias is no part of the sum: it is added once, behind it.
  bool is_added_behind(NodeId id, ValueId operand) const {
    const std::optional<ValueId> found = bias(id);
    return found && *found == operand;
  }
  std::optional<ValueId> bias(NodeId id) const {
    const std::optional<ContentId> factor = decisions_.of(id);
    if (!factor || !analysis_.has_role(id, *factor, Role::reduced)) return std::nullopt;
    const Node& node = graph_[id];
    const std::string_view base = base_name(known_op(node));
    const bool first = base == "addmm" || base == "baddbmm";
    const bool third = base == "linear" || base.find("conv") != std::string_view::npos;
    if (!first && !third) return std::nullopt;
    const size_t index = first ? 0 : 2;
    const auto* value =
        index < node.inputs.size() ? std::get_if<ValueId>(&node.inputs[index]) : nullptr;
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }

  template <class Take>
  void reduce(NodeId id, ContentId factor, const Take& take) {
    const Node& node = graph_[id];
    const ValueId result = node.outputs.front();
    const std::optional<ValueId> added = bias(id);
    Node partial = node;
    if (added) {
      const std::string_view base = base_name(known_op(node));
      if (base == "addmm" || base == "baddbmm") {
        set_operator(partial, base == "addmm" ? "aten::mm" : "aten::bmm");
        partial.inputs = {node.inputs[1], node.inputs[2]};
      } else {
        partial.inputs[2] = None{};
      }
    }
    Node made = copy_with(partial, take);
    sizes_.localise(made, node, factor);
    made.name = unique_name(node.name + ".part", names_);
    const ValueId mine = add_node(std::move(made), graph_[result], graph_[result].dims);
    if (const auto sequence = decisions_.of(result)) {
      return scatter(node, mine, result, *sequence, added);
    }
    const ValueId sum = sum_of(node, mine);
    if (!added) return name(result, sum);
    ValueId plus = whole(*added, node);
    const bool conv = base_name(known_op(node)).find("conv") != std::string_view::npos;
    if (conv) {  // [channels] beside [N, channels, ..]
      Node view = call(node, "bias", "aten::view");
      std::vector<AffineInt> dims(graph_[result].dims.size() - 1, AffineInt{1, 0});
      dims[0] = graph_[*added].dims[0];
      view.inputs = {plus, dims};
      plus = add_node(std::move(view), graph_[*added], dims);
    }
    Node add = call(node, "add", "aten::add.Tensor");
    add.inputs = {sum, plus, AffineInt{1, 0}};
    name(result, add_node(std::move(add), graph_[result], graph_[result].dims));
  }

  ValueId sum_of(const Node& origin, ValueId partial) {
    Node node = call(origin, "sum", "group::sum");
    node.inputs = {partial};
    return add_node(std::move(node), out_.graph[partial], out_.graph[partial].dims);
  }

  /// Of a partial result each place gets its part of the sum; a bias is added there.
  void scatter(const Node& origin, ValueId partial, ValueId result, ContentId sequence,
               std::optional<ValueId> added = {}) {
    const int dim = *analysis_.dim(result, sequence);
    Node sum = call(origin, "sum", "group::reduce_scatter");
    sum.inputs = {partial, AffineInt{dim, 0}, sizes_.pieces(result, dim, sequence)};
    memory_.clear();
    if (added) {
      // Columns are a sequence elsewhere, as those of a mixer of tokens are.
      const bool columns = analysis_.has(*added, sequence);
      const ValueId plus = columns ? part(*added, sequence, origin) : summed(*added, origin);
      const ValueId mine = add_node(std::move(sum), sizes_.local_value(result, sequence),
                                    sizes_.of(result, sequence));
      sum = call(origin, "add", "aten::add.Tensor");
      sum.inputs = {mine, plus, AffineInt{1, 0}};
    }
    sum.outputs = {add_result(result, sequence)};
    keep_node(std::move(sum));
  }

  /// `made` is what the model's `result` is here.
  void name(ValueId result, ValueId made) {
    versions_[result.index].whole = made;
    out_.graph[made].rows = graph_[result].rows;
  }

  void exchange(NodeId id, ContentId factor) {
    if (base_name(known_op(graph_[id])) == "embedding") return embed(id, factor);
    class_loss(id, factor);
  }

  /// One operator of torch's whose result is like `like`.
  ValueId op(const Node& origin, const char* role, const char* what, std::vector<Argument> inputs,
             const Value& like, std::vector<AffineInt> dims) {
    Node node = call(origin, role, what);
    node.inputs = std::move(inputs);
    return add_node(std::move(node), like, std::move(dims));
  }

  /// Own rows of the table, zeros for others; the sum over the group has each from its place.
  void embed(NodeId id, ContentId factor) {
    const Node& node = graph_[id];
    const auto weight = std::get<ValueId>(node.inputs[0]);
    const ValueId index = whole(std::get<ValueId>(node.inputs[1]), node);
    const ValueId table = part(weight, factor, node);
    const auto [own, outside] = own_index(node, index, sizes_.single(weight, 0, factor));
    Value like = graph_[node.outputs[0]];
    const auto dims = like.dims;
    Node lookup = call(node, "part", node.op);
    lookup.inputs = node.inputs;
    lookup.inputs[0] = table;
    lookup.inputs[1] = own;
    if (const auto* padding =
            node.inputs.size() > 2 ? std::get_if<AffineInt>(&node.inputs[2]) : nullptr) {
      const Stretch mine = sizes_.single(weight, 0, factor);
      const int64_t row = padding->fixed - mine.begin;
      const bool is_mine = padding->fixed >= 0 && row >= 0 && row < mine.size;
      lookup.inputs[2] = AffineInt{is_mine ? row : -1, 0};
    }
    const ValueId found = add_node(std::move(lookup), like, dims);
    Value flags = out_.graph[outside];
    auto flag_dims = flags.dims;
    flag_dims.push_back({1, 0});
    const ValueId column =
        op(node, "outside", "aten::unsqueeze", {outside, AffineInt{-1, 0}}, flags, flag_dims);
    const ValueId own_rows =
        op(node, "own", "aten::masked_fill.Scalar", {found, column, AffineInt{0, 0}}, like, dims);
    if (const auto sequence = decisions_.of(node.outputs[0])) {
      return scatter(node, own_rows, node.outputs[0], *sequence);
    }
    name(node.outputs[0], sum_of(node, own_rows));
  }

  /// Indices counted from this place's first, and which are not in its stretch.
  std::pair<ValueId, ValueId> own_index(const Node& node, ValueId index, Stretch mine) {
    const Value like = out_.graph[index];
    Value flags = like;
    flags.dtype = DType::boolean;
    const auto number = [](int64_t value) { return AffineInt{value, 0}; };
    const ValueId moved = op(node, "index", "aten::sub.Scalar",
                             {index, number(mine.begin), number(1)}, like, like.dims);
    const ValueId clamped = op(node, "clamped", "aten::clamp",
                               {moved, number(0), number(mine.size - 1)}, like, like.dims);
    const ValueId outside =
        op(node, "is_outside", "aten::ne.Tensor", {moved, clamped}, flags, like.dims);
    return {clamped, outside};
  }

  /// Per row the greatest score, the sum of exponentials and the target's score are exchanged.
  void class_loss(NodeId id, ContentId factor) {
    const Node& node = graph_[id];
    const auto scores_id = std::get<ValueId>(node.inputs[0]);
    const ValueId scores = part(scores_id, factor, node);
    const ValueId target = whole(std::get<ValueId>(node.inputs[1]), node);
    const auto integer = [&](size_t index, int64_t fallback) {
      const auto* value =
          index < node.inputs.size() ? std::get_if<AffineInt>(&node.inputs[index]) : nullptr;
      return value == nullptr ? fallback : value->fixed;
    };
    const auto number = [](int64_t value) { return AffineInt{value, 0}; };
    const Value wide = out_.graph[scores];
    Value column = wide;
    column.rows.dim = 0;
    Value still = wide;
    still.requires_grad = false;
    const std::vector<AffineInt> rows{wide.dims[0]};
    const std::vector<AffineInt> one{wide.dims[0], {1, 0}};
    const std::vector<AffineInt> along{{1, 0}};
    const ValueId detached = op(node, "detached", "aten::detach", {scores}, still, wide.dims);
    const ValueId own_top = op(node, "own_top", "aten::amax", {detached, along, true}, still, one);
    const ValueId top = op(node, "top", "group::max", {own_top}, still, one);
    const ValueId lower =
        op(node, "lower", "aten::sub.Tensor", {scores, top, number(1)}, wide, wide.dims);
    const ValueId powers = op(node, "exp", "aten::exp", {lower}, wide, wide.dims);
    const ValueId own_total = op(node, "own_total", "aten::sum.dim_IntList",
                                 {powers, along, false, None{}}, column, rows);
    const ValueId total = op(node, "total", "group::sum", {own_total}, column, rows);
    const ValueId log_total = op(node, "log", "aten::log", {total}, column, rows);
    const auto [own, outside] = own_index(node, target, sizes_.single(scores_id, 1, factor));
    Value index = out_.graph[own];
    const ValueId own_column = op(node, "target", "aten::unsqueeze", {own, number(1)}, index, one);
    const ValueId picked =
        op(node, "gather", "aten::gather", {lower, number(1), own_column, false}, wide, one);
    const ValueId flat = op(node, "picked", "aten::squeeze.dim", {picked, number(1)}, column, rows);
    const ValueId own_score =
        op(node, "own_score", "aten::masked_fill.Scalar", {flat, outside, number(0)}, column, rows);
    const ValueId score = op(node, "score", "group::sum", {own_score}, column, rows);
    ValueId loss =
        op(node, "loss", "aten::sub.Tensor", {log_total, score, number(1)}, column, rows);
    const int64_t ignored = integer(4, -100);
    Value flags = index;
    flags.dtype = DType::boolean;
    const ValueId is_ignored =
        op(node, "is_ignored", "aten::eq.Scalar", {target, number(ignored)}, flags, rows);
    loss =
        op(node, "kept", "aten::masked_fill.Scalar", {loss, is_ignored, number(0)}, column, rows);
    const Value& result = graph_[node.outputs[0]];
    const int64_t reduction = integer(3, 1);
    if (reduction != 0) loss = op(node, "sum", "aten::sum", {loss, None{}}, result, {});
    if (reduction == 1) {
      const ValueId kept =
          op(node, "is_kept", "aten::ne.Scalar", {target, number(ignored)}, flags, rows);
      const ValueId count = op(node, "count", "aten::sum", {kept, None{}}, index, {});
      loss = op(node, "mean", "aten::div.Tensor", {loss, count}, result, {});
    }
    name(node.outputs[0], loss);
  }

  Node output_node() const {
    Node node;
    node.name = "outputs";
    return node;
  }

  const Graph& graph_;
  const Analysis& analysis_;
  Decisions decisions_;
  LocalSizes sizes_;
  const std::set<ContentId>& sequences_;
  const Layouts& held_;
  size_t place_;
  std::unordered_set<std::string> names_;
  ShardedGraph out_;
  NodeId origin_;  ///< the node of the model at work
  std::vector<Versions> versions_;
  std::map<ValueId, ValueId> memory_;  ///< of the node at work: what stands for each storage
};

}  // namespace

ShardedGraph sharding::graph_of_place(const Graph& graph, const Analysis& analysis, const Cut& cut,
                                      int ways, int place) {
  return Sharder(graph, analysis, cut, ways, place).run();
}

}  // namespace rannc::ir
