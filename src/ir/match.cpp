#include "rannc/ir/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <unordered_map>

#include "ir/names.h"
#include "rannc/ir/draws.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

std::string where(const Node& node) {
  return fmt::format("'{}' ({})", node.name, module_place(node));
}

std::string where(const Graph& graph, ValueId id) {
  const Value& value = graph[id];
  if (value.kind != ValueKind::result) {
    return fmt::format("{} '{}'", name_of(value.kind, kValueKindNames), value.name);
  }
  return fmt::format("result '{}' of node {}", value.name, where(graph[value.producer]));
}

/// What nodes depend on beside the values that they take.
struct Order {
  Order(const Graph& graph, bool keyed_draws)
      : writers(graph.nodes.size()),
        draw_before(graph.nodes.size()),
        last_writer(graph.values.size()),
        position(graph.values.size()) {
    NodeId last_draw;
    for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
      const Node& node = graph.nodes[index];
      for (ValueId value : touched(graph, {index})) {
        writers[index].push_back(last_writer[graph[value].storage.index]);
      }
      for (ValueId value : node.writes) last_writer[graph[value].storage.index] = {index};
      for (size_t place = 0; place < node.outputs.size(); ++place) {
        if (node.outputs[place].valid()) position[node.outputs[place].index] = place;
      }
      if (keyed_draws || node.kind != OpKind::dispatcher || !draws(node)) continue;
      draw_before[index] = last_draw;
      last_draw = {index};
    }
  }

  /// What a node reads, and then what it writes.
  static std::vector<ValueId> touched(const Graph& graph, NodeId id) {
    std::vector<ValueId> values = graph.operands(id);
    values.insert(values.end(), graph[id].writes.begin(), graph[id].writes.end());
    return values;
  }

  /// For each node and each value that it touches, who wrote that storage last.
  std::vector<std::vector<NodeId>> writers;
  std::vector<NodeId> draw_before;  ///< for each node that draws, the one that drew before it
  std::vector<NodeId> last_writer;  ///< by storage, at the end
  std::vector<size_t> position;     ///< of a result among those of its node
};

/// Counterparts of ids, in both directions.
template <class Id>
class Pairs {
 public:
  Pairs(size_t a, size_t b) : to_b_(a), to_a_(b) {}

  [[nodiscard]] bool has(Id a, Id b) const { return of_a(a) == b && to_a_[b.index] == a; }
  [[nodiscard]] bool is_free(Id a, Id b) const {
    return !of_a(a).valid() && !to_a_[b.index].valid();
  }
  [[nodiscard]] Id of_a(Id a) const { return to_b_[a.index]; }
  void add(Id a, Id b) {
    to_b_[a.index] = b;
    to_a_[b.index] = a;
  }

 private:
  std::vector<Id> to_b_;
  std::vector<Id> to_a_;
};

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);  // NaN equals itself
}

/// Whether two arguments are the same but for which values they are.
bool same_literal(const Argument& a, const Argument& b) {
  if (a.index() != b.index()) return false;
  if (std::holds_alternative<ValueId>(a)) return true;
  if (const auto* list = std::get_if<ValueList>(&a)) {
    return std::ranges::equal(
        list->values, std::get<ValueList>(b).values,
        [](ValueId left, ValueId right) { return left.valid() == right.valid(); });
  }
  if (const auto* number = std::get_if<double>(&a)) return same_bits(*number, std::get<double>(b));
  if (const auto* list = std::get_if<std::vector<double>>(&a)) {
    return std::ranges::equal(*list, std::get<std::vector<double>>(b), same_bits);
  }
  return a == b;
}

bool same_properties(const Value& a, const Value& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.dims == b.dims && a.rows == b.rows &&
         a.requires_grad == b.requires_grad && a.on_host == b.on_host;
}

constexpr std::string_view kFrozen =
    "\n  One requires a gradient, and the other does not. Freeze the model's parameters on every "
    "rank alike, not those of an optimizer's groups, which hold a rank's own.";

/// Follows both graphs backward from what the model gives and changes.
class Matcher {
 public:
  Matcher(const NamedGraph& a, const NamedGraph& b, bool keyed_draws)
      : a_(*a.graph),
        b_(*b.graph),
        names_a_(a),
        names_b_(b),
        order_a_(a_, keyed_draws),
        order_b_(b_, keyed_draws),
        values_(a_.values.size(), b_.values.size()),
        storages_(a_.values.size(), b_.values.size()),
        nodes_(a_.nodes.size(), b_.nodes.size()) {
    RANNC_CHECK(names_a_.inputs.size() == a_.inputs.size() &&
                    names_b_.inputs.size() == b_.inputs.size() &&
                    names_a_.outputs.size() == a_.outputs.size() &&
                    names_b_.outputs.size() == b_.outputs.size(),
                "a name for each input and output");
    match_.objects.resize(names_a_.objects.size());
  }

  Match run() {
    const bool same = start() && follow() && find_other_objects();
    RANNC_CHECK(same == match_.difference.empty(), match_.difference);
    return std::move(match_);
  }

 private:
  // The first difference counts: whoever finds it knows more about it than its callers do.
  bool differ(const std::string& difference) {
    if (match_.difference.empty()) match_.difference = difference;
    return false;
  }
  bool differ(ValueId a, ValueId b, const std::string& more = "") {
    Value thawed = b_[b];
    thawed.requires_grad = a_[a].requires_grad;
    const bool frozen = !same_properties(a_[a], b_[b]) && same_properties(a_[a], thawed);
    return differ(fmt::format("{} differs from {}:\n  {}\n  {}{}{}", where(a_, a), where(b_, b),
                              value_line(a_, a), value_line(b_, b), more, frozen ? kFrozen : ""));
  }
  bool differ(NodeId a, NodeId b, const std::string& more = "") {
    return differ(fmt::format("node {} differs from node {}:\n  {}\n  {}{}", where(a_[a]),
                              where(b_[b]), node_line(a_, a, /*with_source=*/false),
                              node_line(b_, b, /*with_source=*/false), more));
  }

  // What both graphs begin and end with. States are compared before anything else: where a model
  // is built otherwise, they say it best.
  bool start() {
    if (a_.name != b_.name) {
      return differ(fmt::format("the graphs are called '{}' and '{}'", a_.name, b_.name));
    }
    return start_inputs() && start_states() && start_outputs();
  }

  bool places(const std::vector<std::string>& names_a, const std::vector<std::string>& names_b,
              std::string_view what, std::vector<size_t>& in_b) {
    std::unordered_map<std::string_view, size_t> found;
    for (size_t index = 0; index < names_b.size(); ++index) found.emplace(names_b[index], index);
    for (const std::string& name : names_a) {
      if (const auto place = found.find(name); place != found.end()) in_b.push_back(place->second);
    }
    if (in_b.size() == names_a.size() && names_a.size() == names_b.size()) return true;
    return differ(fmt::format("the {} are {} and {}", what, fmt::join(names_a, ", "),
                              fmt::join(names_b, ", ")));
  }

  bool start_inputs() {
    if (!places(names_a_.inputs, names_b_.inputs, "inputs", match_.inputs)) return false;
    for (size_t index = 0; index < a_.inputs.size(); ++index) {
      if (!start_value(a_.inputs[index], b_.inputs[match_.inputs[index]])) return false;
    }
    return true;
  }

  bool start_states() {
    std::unordered_map<std::string_view, ValueId> states;
    for (uint32_t index = 0; index < b_.values.size(); ++index) {
      const Value& value = b_.values[index];
      if (is_state(value)) states.emplace(value.name, ValueId{index});
    }
    for (uint32_t index = 0; index < a_.values.size(); ++index) {
      const Value& value = a_.values[index];
      if (!is_state(value)) continue;
      const auto found = states.find(value.name);
      if (found == states.end()) return differ_alone(a_, {index}, "second");
      if (!start_value({index}, found->second)) return false;
      states.erase(found);
    }
    for (uint32_t index = 0; index < b_.values.size(); ++index) {
      if (states.contains(b_.values[index].name)) return differ_alone(b_, {index}, "first");
    }
    return true;
  }
  static bool is_state(const Value& value) {
    return value.kind == ValueKind::parameter || value.kind == ValueKind::buffer;
  }
  bool differ_alone(const Graph& graph, ValueId id, std::string_view other) {
    return differ(fmt::format("{} is not in the {} graph", where(graph, id), other));
  }

  bool start_value(ValueId a, ValueId b) {
    const auto sorted = [](std::vector<std::string> names) {
      std::ranges::sort(names);
      return names;
    };
    if (sorted(a_[a].aliases) != sorted(b_[b].aliases)) return differ(a, b);
    values_.add(a, b);
    return compare(a, b);
  }

  bool start_outputs() {
    if (!places(names_a_.outputs, names_b_.outputs, "outputs", match_.outputs)) return false;
    for (size_t index = 0; index < a_.outputs.size(); ++index) {
      const ValueId a = a_.outputs[index];
      const ValueId b = b_.outputs[match_.outputs[index]];
      if (pair_values(a, b)) continue;
      return differ(
          fmt::format("{} is {}, but {}", names_a_.outputs[index], where(a_, a), where(b_, b)));
    }
    return true;
  }

  // False where they are not each other's counterparts: the caller says what that means.
  bool pair_nodes(NodeId a, NodeId b) {
    if (!a.valid() || !b.valid()) return a == b;
    if (nodes_.has(a, b)) return true;
    if (!nodes_.is_free(a, b)) return false;
    nodes_.add(a, b);
    pending_.emplace_back(a, b);
    return true;
  }

  // Likewise. Results are compared together with the nodes that make them.
  bool pair_values(ValueId a, ValueId b) {
    if (values_.has(a, b)) return true;
    if (!values_.is_free(a, b) || a_[a].kind != b_[b].kind) return false;
    if (a_[a].kind == ValueKind::result) {
      return order_a_.position[a.index] == order_b_.position[b.index] &&
             pair_nodes(a_[a].producer, b_[b].producer);
    }
    RANNC_CHECK(a_[a].kind == ValueKind::constant, "inputs and states have their counterparts");
    values_.add(a, b);
    return compare(a, b) && pair_objects(a, b);
  }

  // Says whether two values that are counterparts are alike.
  bool compare(ValueId a, ValueId b) {
    const ValueId left = a_[a].storage;
    const ValueId right = b_[b].storage;
    if (!same_properties(a_[a], b_[b])) return differ(a, b);
    if (storages_.has(left, right)) return true;
    if (!storages_.is_free(left, right)) return differ(a, b);
    storages_.add(left, right);
    const NodeId writer_a = order_a_.last_writer[left.index];
    const NodeId writer_b = order_b_.last_writer[right.index];
    if (pair_nodes(writer_a, writer_b)) return true;
    return differ(fmt::format("{} is left {}, but {} {}", where(a_, a), as_written(a_, writer_a),
                              where(b_, b), as_written(b_, writer_b)));
  }
  static std::string as_written(const Graph& graph, NodeId writer) {
    return writer.valid() ? fmt::format("as node {} has written it", where(graph[writer]))
                          : "as it was before anything wrote it";
  }

  // Takes the objects of two constants, or of two nodes, for counterparts.
  template <class Id>
  bool pair_objects(Id a, Id b) {
    const ObjectId left = a_[a].object;
    const ObjectId right = b_[b].object;
    if (!left.valid()) return true;
    const std::string& text_a = names_a_.objects.at(left.index);
    const std::string& text_b = names_b_.objects.at(right.index);
    match_.objects[left.index] = right;
    return text_a == text_b || differ(a, b,
                                      fmt::format("\n  #{} is {}\n  #{} is {}", left.index, text_a,
                                                  right.index, text_b));
  }

  bool follow() {
    while (!pending_.empty()) {
      const auto [a, b] = pending_.front();
      pending_.pop_front();
      if (!compare(a, b)) return false;
    }
    return true;
  }

  bool compare(NodeId a, NodeId b) {
    const Node& left = a_[a];
    const Node& right = b_[b];
    const auto same_validity = [](ValueId x, ValueId y) { return x.valid() == y.valid(); };
    if (left.kind != right.kind || left.op != right.op || left.like != right.like ||
        left.grad_enabled != right.grad_enabled || left.by_share != right.by_share ||
        left.whole_batch != right.whole_batch || left.writes.size() != right.writes.size() ||
        !std::ranges::equal(left.inputs, right.inputs, same_literal) ||
        !std::ranges::equal(left.outputs, right.outputs, same_validity)) {
      return differ(a, b);
    }
    return pair_objects(a, b) && compare_results(a, b) && compare_touched(a, b) &&
           compare_draws(a, b);
  }

  bool compare_results(NodeId a, NodeId b) {
    for (size_t index = 0; index < a_[a].outputs.size(); ++index) {
      const ValueId left = a_[a].outputs[index];
      const ValueId right = b_[b].outputs[index];
      if (!left.valid()) continue;
      values_.add(left, right);
      if (!compare(left, right)) return false;
    }
    return true;
  }

  bool compare_touched(NodeId a, NodeId b) {
    const std::vector<ValueId> left = Order::touched(a_, a);
    const std::vector<ValueId> right = Order::touched(b_, b);
    for (size_t index = 0; index < left.size(); ++index) {
      if (!pair_values(left[index], right[index])) return differ(a, b);
    }
    for (size_t index = 0; index < left.size(); ++index) {
      const NodeId writer_a = order_a_.writers[a.index][index];
      const NodeId writer_b = order_b_.writers[b.index][index];
      if (pair_nodes(writer_a, writer_b)) continue;
      return differ(fmt::format("node {} takes '{}' {}, but node {} takes '{}' {}", where(a_[a]),
                                a_[left[index]].name, as_written(a_, writer_a), where(b_[b]),
                                b_[right[index]].name, as_written(b_, writer_b)));
    }
    return true;
  }

  bool compare_draws(NodeId a, NodeId b) {
    const NodeId before_a = order_a_.draw_before[a.index];
    const NodeId before_b = order_b_.draw_before[b.index];
    if (pair_nodes(before_a, before_b)) return true;
    return differ(fmt::format("node {} draws random numbers {}, but node {} {}", where(a_[a]),
                              after(a_, before_a), where(b_[b]), after(b_, before_b)));
  }
  static std::string after(const Graph& graph, NodeId draw) {
    return draw.valid() ? fmt::format("after node {}", where(graph[draw])) : "first of all";
  }

  // What nothing depends on is no part of the way back, but the executor runs it: any object will
  // do that is the same.
  bool find_other_objects() {
    std::unordered_map<std::string_view, ObjectId> by_text;
    const auto note = [&](ObjectId id) {
      if (id.valid()) by_text.emplace(names_b_.objects.at(id.index), id);
    };
    for (const Value& value : b_.values) note(value.object);
    for (const Node& node : b_.nodes) note(node.object);
    const auto find = [&](ObjectId id, const std::string& user) {
      if (!id.valid() || match_.objects[id.index].valid()) return true;
      const std::string& text = names_a_.objects.at(id.index);
      const auto found = by_text.find(text);
      if (found == by_text.end()) {
        return differ(fmt::format("{}: nothing in the second graph is {}", user, text));
      }
      match_.objects[id.index] = found->second;
      return true;
    };
    for (uint32_t index = 0; index < a_.values.size(); ++index) {
      if (!find(a_.values[index].object, where(a_, ValueId{index}))) return false;
    }
    return std::ranges::all_of(
        a_.nodes, [&](const Node& node) { return find(node.object, "node " + where(node)); });
  }

  const Graph& a_;
  const Graph& b_;
  const NamedGraph& names_a_;
  const NamedGraph& names_b_;
  Order order_a_;
  Order order_b_;
  Pairs<ValueId> values_;
  Pairs<ValueId> storages_;  ///< by the value that stands for a storage, which may be another one
  Pairs<NodeId> nodes_;
  std::deque<std::pair<NodeId, NodeId>> pending_;
  Match match_;
};

}  // namespace

Match match(const NamedGraph& reference, const NamedGraph& trace, bool keyed_draws) {
  return Matcher(reference, trace, keyed_draws).run();
}

}  // namespace rannc::ir
