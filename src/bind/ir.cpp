#include <pybind11/stl.h>

#include <algorithm>
#include <tuple>

#include "bind/layouts.h"
#include "bind/module.h"
#include "rannc/ir/contents.h"
#include "rannc/ir/cut.h"
#include "rannc/ir/draws.h"
#include "rannc/ir/graph.h"
#include "rannc/ir/match.h"
#include "rannc/ir/operators.h"
#include "rannc/ir/rewrites.h"
#include "rannc/ir/rows.h"
#include "rannc/ir/shard.h"
#include "rannc/ir/text.h"

namespace rannc::bind {
namespace {

using namespace py::literals;
using Unlocked = py::call_guard<py::gil_scoped_release>;

/// An argument as Python knows it; tensors by name, and integers that depend on the rows as pairs
/// (fixed, per_row).
struct ArgumentToPython {
  const ir::Graph& graph;

  [[nodiscard]] py::object name(ir::ValueId id) const {
    return id.valid() ? py::object(py::str(graph[id].name)) : py::object(py::none());
  }
  static py::object integer(const ir::AffineInt& value) {
    return value.depends_on_rows() ? py::object(py::make_tuple(value.fixed, value.per_row))
                                   : py::object(py::int_(value.fixed));
  }

  py::object operator()(const ir::None&) const { return py::none(); }
  py::object operator()(ir::ValueId id) const { return py::make_tuple("value", name(id)); }
  py::object operator()(const ir::ValueList& list) const {
    py::list names;
    for (ir::ValueId id : list.values) names.append(name(id));
    return py::make_tuple("values", names);
  }
  py::object operator()(const ir::AffineInt& value) const { return integer(value); }
  py::object operator()(const ir::Device& device) const {
    return py::make_tuple("device", device.name);
  }
  py::object operator()(const std::vector<ir::AffineInt>& list) const {
    py::list sizes;
    for (const ir::AffineInt& size : list) sizes.append(integer(size));
    return sizes;
  }
  template <class T>
  py::object operator()(const T& value) const {
    return py::cast(value);
  }
};

/// Values and nodes belong to a graph; Python keeps the graph alive as long as it holds one of
/// them.
constexpr auto kInside = py::return_value_policy::reference_internal;

template <class Tag>
std::vector<py::object> indices(const std::vector<Id<Tag>>& ids) {
  std::vector<py::object> list;
  for (Id<Tag> id : ids) {
    list.push_back(id.valid() ? py::object(py::int_(id.index)) : py::object(py::none()));
  }
  return list;
}

/// graph.values and graph.nodes: sequences that copy nothing.
struct Values {
  const ir::Graph& graph;
  [[nodiscard]] const std::vector<ir::Value>& items() const { return graph.values; }
};
struct Nodes {
  const ir::Graph& graph;
  [[nodiscard]] const std::vector<ir::Node>& items() const { return graph.nodes; }
};

template <class Sequence>
void init_sequence(py::module_& m, const char* name) {
  py::class_<Sequence>(m, name)
      .def("__len__", [](const Sequence& sequence) { return sequence.items().size(); })
      .def(
          "__getitem__", [](const Sequence& sequence, int64_t index) -> const auto& {
            const auto size = static_cast<int64_t>(sequence.items().size());
            if (index < -size || index >= size) throw py::index_error();
            return sequence.items()[static_cast<size_t>(index < 0 ? index + size : index)];
          },
          "index"_a, kInside)
      .def(
          "__iter__",
          [](const Sequence& sequence) {
            return py::make_iterator<py::return_value_policy::reference_internal>(
                sequence.items().begin(), sequence.items().end());
          },
          py::keep_alive<0, 1>());
}

void init_value(py::module_& m) {
  py::class_<ir::Rows>(m, "Rows", "How a value depends on the rows of the batch.")
      .def_property_readonly(
          "kind", [](const ir::Rows& r) { return name(r.kind); },
          "'none', 'apart', 'mean', 'sum' or 'mixed'")
      .def_readonly("dim", &ir::Rows::dim)
      .def_readonly("outer", &ir::Rows::outer)
      .def_readonly("inner", &ir::Rows::inner)
      .def_readonly("proved", &ir::Rows::proved)
      .def("__eq__", [](const ir::Rows& a, const ir::Rows& b) { return a == b; });

  py::class_<ir::Value>(m, "Value", "A tensor of a graph.")
      .def_readonly("name", &ir::Value::name)
      .def_property_readonly(
          "kind", [](const ir::Value& v) { return name(v.kind); },
          "'input', 'parameter', 'buffer', 'constant' or 'result'")
      .def_property_readonly("dtype", [](const ir::Value& v) { return name(v.dtype); })
      .def_property_readonly(
          "dims",
          [](const ir::Value& v) {
            std::vector<std::pair<int64_t, int64_t>> dims;
            for (const ir::AffineInt& dim : v.dims) dims.emplace_back(dim.fixed, dim.per_row);
            return dims;
          },
          "Pairs (fixed, per_row): the size is fixed + per_row * rows.")
      .def_readonly("rows", &ir::Value::rows)
      .def_readonly("requires_grad", &ir::Value::requires_grad)
      .def_readonly("on_host", &ir::Value::on_host)
      .def_readonly("aliases", &ir::Value::aliases)
      .def_property_readonly("storage", [](const ir::Value& v) { return v.storage.index; })
      .def("bytes", &ir::Value::bytes, "rows"_a)
      .def("__repr__", [](const ir::Value& v) { return "<Value " + v.name + ">"; });
}

void init_node(py::module_& m) {
  py::class_<ir::Node>(m, "Node", "An operator of a graph; values by their index.")
      .def_readonly("name", &ir::Node::name)
      .def_property_readonly(
          "kind", [](const ir::Node& n) { return name(n.kind); },
          "'dispatcher', 'scripted' or 'python'")
      .def_readonly("op", &ir::Node::op)
      .def_readonly("like", &ir::Node::like)
      .def_readonly("module", &ir::Node::module)
      .def_property_readonly(
          "source", [](const ir::Node& n) { return place(n.source); },
          "'model.py:12', or 'unknown source'")
      .def_readonly("grad_enabled", &ir::Node::grad_enabled)
      .def_readonly("by_share", &ir::Node::by_share)
      .def_readonly("whole_batch", &ir::Node::whole_batch)
      .def_property_readonly("outputs", [](const ir::Node& n) { return indices(n.outputs); })
      .def_property_readonly("writes", [](const ir::Node& n) { return indices(n.writes); })
      .def("__repr__", [](const ir::Node& n) { return "<Node " + n.name + ": " + n.op + ">"; });
}

void init_graph(py::module_& m) {
  using ir::Graph;
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph",
                                            "A model's forward pass, valid at any batch size.")
      .def_static("parse", &ir::parse, "text"_a, Unlocked())
      .def_static("from_json", &ir::graph_from_json, "json"_a, Unlocked())
      .def_readonly("name", &Graph::name)
      .def_property_readonly("inputs", [](const Graph& g) { return indices(g.inputs); })
      .def_property_readonly("outputs", [](const Graph& g) { return indices(g.outputs); })
      .def_property_readonly("values", py::cpp_function([](const Graph& g) { return Values{g}; },
                                                        py::keep_alive<0, 1>()))
      .def_property_readonly("nodes", py::cpp_function([](const Graph& g) { return Nodes{g}; },
                                                       py::keep_alive<0, 1>()))
      .def(
          "operands", [](const Graph& g, uint32_t node) { return indices(g.operands({node})); },
          "node"_a, "Indices of the values that a node reads, in argument order.")
      .def(
          "arguments",
          [](const Graph& g, uint32_t node) {
            py::list list;
            for (const ir::Argument& argument : g[ir::NodeId{node}].inputs) {
              list.append(std::visit(ArgumentToPython{g}, argument));
            }
            return list;
          },
          "node"_a, "In the order of the schema; tensors are ('value', name).")
      .def("text", &ir::print, Unlocked())
      .def("to_json", &ir::to_json, Unlocked())
      .def("fingerprint", &ir::fingerprint, Unlocked())
      .def("__str__", &ir::print, Unlocked())
      .def("__repr__",
           [](const Graph& g) {
             return "<Graph " + g.name + ": " + std::to_string(g.nodes.size()) + " nodes, " +
                    std::to_string(g.values.size()) + " values>";
           })
      .def(
          "__eq__", [](const Graph& a, const Graph& b) { return a == b; }, Unlocked());

  m.def("parse", &ir::parse, "text"_a, Unlocked());
  m.def("verify", &ir::verify, "graph"_a, Unlocked());
}

void init_contents(py::module_& m) {
  using Graph = ir::Graph;
  m.def(
      "dtypes",
      [](const Graph& graph) {
        std::set<std::string> names;
        for (ir::DType dtype : ir::dtypes(graph)) names.emplace(name(dtype));
        return names;
      },
      "graph"_a, Unlocked());
  m.def("requires_grad", &ir::requires_grad, "graph"_a, Unlocked());
  m.def("state_names", &ir::state_names, "graph"_a, Unlocked(),
        "Parameters and buffers, in the order of the graph.");
  m.def(
      "held_values",
      [](const Graph& graph, const Graph& local) {
        std::vector<std::tuple<ir::Value, int64_t, int64_t>> held;
        for (ir::ValueId id : ir::held_values(graph)) {
          const int64_t whole = std::max<int64_t>(graph[id].bytes(1), 1);
          held.emplace_back(graph[id], local[id].bytes(1), whole);
        }
        return held;
      },
      "graph"_a, "local"_a,
      "Parameters, buffers and constants, in the order of the graph: each with its bytes in local, "
      "the same graph with the sizes of one rank, and those of the whole.");
  m.def("written_names", &ir::written_names, "graph"_a, Unlocked(),
        "What some node writes, by the name of the value that holds its memory.");
  m.def(
      "first_reader",
      [](const Graph& graph, const std::string& name) {
        const std::optional<ir::NodeId> node = ir::first_reader(graph, name);
        return node ? std::optional(node->index) : std::nullopt;
      },
      "graph"_a, "name"_a, Unlocked(), "Index of the first node that reads a value of this name.");
  m.def(
      "module_ends",
      [](const Graph& graph) {
        std::map<std::string, uint32_t> ends;
        for (const auto& [path, node] : ir::module_ends(graph)) ends[path] = node.index;
        return ends;
      },
      "graph"_a, Unlocked(),
      "For each module path, the index of the last node inside it that has exactly one result.");
  m.def(
      "by_share_nodes", [](const Graph& graph) { return indices(ir::by_share_nodes(graph)); },
      "graph"_a);
  m.def(
      "whole_batch_nodes", [](const Graph& graph) { return indices(ir::whole_batch_nodes(graph)); },
      "graph"_a);
}

void init_match(py::module_& m) {
  using Names = std::vector<std::string>;
  py::class_<ir::NamedGraph>(m, "NamedGraph",
                             "A graph, and what its inputs, outputs and objects are on every rank.")
      .def(py::init([](const ir::Graph& graph, Names inputs, Names outputs, Names objects) {
             return ir::NamedGraph{&graph, std::move(inputs), std::move(outputs),
                                   std::move(objects)};
           }),
           "graph"_a, "inputs"_a, "outputs"_a, "objects"_a, py::keep_alive<1, 2>());
  py::class_<ir::Match>(m, "Match", "How a trace of a model appears in another one.")
      .def_readonly("difference", &ir::Match::difference)
      .def_property_readonly("objects",
                             [](const ir::Match& match) { return indices(match.objects); })
      .def_readonly("inputs", &ir::Match::inputs)
      .def_readonly("outputs", &ir::Match::outputs);
  m.def("match", &ir::match, "reference"_a, "trace"_a, "keyed_draws"_a, Unlocked());
}

void init_shard(py::module_& m) {
  py::class_<ir::Factor>(m, "Factor", "A class of dimensions that are cut together.")
      .def_readonly("id", &ir::Factor::id)
      .def_readonly("units", &ir::Factor::units)
      .def_property_readonly("parameters",
                             [](const ir::Factor& factor) { return indices(factor.parameters); })
      .def_readonly("why_not", &ir::Factor::why_not);
  py::class_<ir::Part>(m, "Part", "Which part of a parameter, buffer or constant a place holds.")
      .def_readonly("name", &ir::Part::name)
      .def_readonly("dim", &ir::Part::dim)
      .def_property_readonly(
          "stretches",
          [](const ir::Part& part) {
            std::vector<std::pair<int64_t, int64_t>> list;
            for (const auto& [begin, size] : part.stretches) list.emplace_back(begin, size);
            return list;
          },
          "Begin and size of each along `dim`, side by side.");
  py::class_<ir::ShardedGraph>(m, "ShardedGraph", "One place's graph of a group.")
      .def_readonly("graph", &ir::ShardedGraph::graph)
      .def_readonly("factors", &ir::ShardedGraph::factors)
      .def_readonly("parts", &ir::ShardedGraph::parts)
      .def_property_readonly("gathered", [](const ir::ShardedGraph& sharded) {
        std::vector<std::pair<uint32_t, std::string>> list;
        for (const auto& [node, factor] : sharded.gathered) list.emplace_back(node.index, factor);
        return list;
      });
  m.def("factors", &ir::factors, "graph"_a, Unlocked());
  m.def("choose_factors", &ir::choose_factors, "graph"_a, "ways"_a, Unlocked());
  m.def(
      "shard",
      [](const ir::Graph& graph, int ways, int place,
         const std::optional<std::vector<std::string>>& chosen, const HeldParts& held,
         bool sequence) {
        return ir::shard(graph, ways, place, chosen, to_layouts(held), sequence);
      },
      "graph"_a, "ways"_a, "place"_a, "chosen"_a = std::nullopt, "held"_a = HeldParts(),
      "sequence"_a = false, Unlocked());
  m.def("verify_shard", &ir::verify_shard, "whole"_a, "places"_a, Unlocked());
  m.def(
      "collective_bytes",
      [](const ir::Graph& sharded, int ways, int64_t rows) {
        return ir::all_traffic(sharded, ways, rows).bytes;
      },
      "sharded"_a, "ways"_a, "rows"_a, Unlocked(),
      "What a rank sends for the collectives of a sharded graph, by rings.");
  m.def(
      "rows_are_inside",
      [](const ir::Value& value) { return ir::has_row_dimension(value) && value.rows.outer != 1; },
      "value"_a, "Whether its rows stand inside another dimension.");
  m.def("with_sizes_of", &ir::with_sizes_of, "whole"_a, "sharded"_a, Unlocked());
}

void init_operators(py::module_& m) {
  py::enum_<ir::Trait>(m, "Trait", "What kind an operator is (rannc/ir/operators.h).")
      .value("pointwise", ir::Trait::pointwise)
      .value("view", ir::Trait::view)
      .value("reduction", ir::Trait::reduction)
      .value("along", ir::Trait::along)
      .value("product", ir::Trait::product)
      .value("factory", ir::Trait::factory)
      .value("scales", ir::Trait::scales)
      .value("loss", ir::Trait::loss)
      .value("draws", ir::Trait::draws)
      .value("unset", ir::Trait::unset)
      .value("like", ir::Trait::like)
      .value("passes", ir::Trait::passes)
      .value("statistics", ir::Trait::statistics)
      .value("known", ir::Trait::known)
      .value("mask", ir::Trait::mask)
      .value("selected", ir::Trait::selected)
      .value("checked", ir::Trait::checked)
      .value("released", ir::Trait::released);
  m.def(
      "operators",
      [](std::optional<ir::Trait> trait) {
        std::set<std::string> names;
        for (const ir::Operator& each : ir::all_operators()) {
          if (!trait || ir::has(each.traits, *trait)) names.emplace(each.name);
        }
        return names;
      },
      "trait"_a = py::none(), Unlocked(),
      "Those of a kind, without namespace, overload and in-place underscore; other names, too.");
  m.def("may_draw", &ir::may_draw, "op"_a, Unlocked());
}

void init_passes(py::module_& m) {
  using Graph = ir::Graph;
  py::class_<ir::RowMix>(m, "RowMix", "A node whose rows interact.")
      .def_property_readonly("node", [](const ir::RowMix& mix) { return mix.node.index; })
      .def_readonly("reason", &ir::RowMix::reason);
  py::class_<ir::RunningStatistic>(m, "RunningStatistic")
      .def_property_readonly("node", [](const ir::RunningStatistic& s) { return s.node.index; })
      .def_property_readonly("buffer", [](const ir::RunningStatistic& s) { return s.buffer.index; })
      .def_readonly("momentum", &ir::RunningStatistic::momentum);

  m.def("drop_dead_nodes", &ir::drop_dead_nodes, "graph"_a, Unlocked());
  m.def("infer_rows", &ir::infer_rows, "graph"_a, Unlocked());
  m.def("exact_means", &ir::exact_means, "graph"_a, Unlocked());
  m.def("explicit_draws", &ir::explicit_draws, "graph"_a, Unlocked());
  m.def(
      "dense_gradients",
      [](const Graph& graph) {
        ir::DenseGradients dense = ir::dense_gradients(graph);
        std::vector<uint32_t> changed;
        for (ir::NodeId node : dense.changed) changed.push_back(node.index);
        return std::pair(std::move(dense.graph), std::move(changed));
      },
      "graph"_a, Unlocked(), "The graph, and the nodes, by index, that are not as they were.");
  py::class_<ir::HoistedSums>(m, "HoistedSums", "A graph in parts, by hoist_input_sums().")
      .def_readonly("preludes", &ir::HoistedSums::preludes)
      .def_readonly("main", &ir::HoistedSums::main);
  m.def("hoist_input_sums", &ir::hoist_input_sums, "graph"_a, "by_share"_a = false, Unlocked());
  m.def("row_mixes", &ir::row_mixes, "graph"_a, Unlocked());
  m.def(
      "row_positions",
      [](const Graph& graph) {
        std::vector<std::pair<uint32_t, uint32_t>> found;
        for (const auto& [node, input] : ir::row_positions(graph)) {
          found.emplace_back(node.index, input.index);
        }
        return found;
      },
      "graph"_a, Unlocked(),
      "Of each node that takes an input for positions of rows, both indices.");
  m.def("why_rows_interact", &ir::why_rows_interact, "graph"_a, Unlocked());
  m.def("why_rows_may_interact", &ir::why_rows_may_interact, "graph"_a, Unlocked());
  m.def("why_shares_differ", &ir::why_shares_differ, "graph"_a, Unlocked());
  m.def("sizes_are_linear", &ir::sizes_are_linear, "graph"_a, Unlocked());
  m.def("at_rows", &ir::at_rows, "graph"_a, "rows"_a, Unlocked());
  m.def("for_rows_alone", &ir::for_rows_alone, "trace"_a, "rows"_a, Unlocked());
  m.def("without_dropout", &ir::without_dropout, "graph"_a, Unlocked());
  m.def("depends_on_rows", &ir::depends_on_rows, "graph"_a, Unlocked());
  m.def("running_statistics", &ir::running_statistics, "graph"_a, Unlocked());
  m.def("whole_batch_statistics", &ir::whole_batch_statistics, "graph"_a, Unlocked());
  m.def(
      "inseparable_nodes",
      [](const Graph& graph) {
        std::vector<std::vector<uint32_t>> sets;
        for (const auto& set : ir::inseparable_nodes(graph)) {
          sets.emplace_back();
          for (ir::NodeId node : set) sets.back().push_back(node.index);
        }
        return sets;
      },
      "graph"_a, Unlocked());
  m.def(
      "extract",
      [](const Graph& graph, const std::vector<uint32_t>& nodes,
         const std::vector<uint32_t>& keep) {
        std::vector<ir::NodeId> node_ids;
        for (uint32_t node : nodes) node_ids.push_back({node});
        std::vector<ir::ValueId> value_ids;
        for (uint32_t value : keep) value_ids.push_back({value});
        return ir::extract(graph, node_ids, value_ids);
      },
      "graph"_a, "nodes"_a, "keep"_a, Unlocked(),
      "One stage as a graph of its own; nodes and values by index.");
}

}  // namespace

void init_ir(py::module_& m) {
  init_value(m);
  init_node(m);
  init_sequence<Values>(m, "Values");  // after their items, whose Python names they show
  init_sequence<Nodes>(m, "Nodes");
  init_graph(m);
  init_contents(m);
  init_match(m);
  init_operators(m);
  init_passes(m);
  init_shard(m);
}

}  // namespace rannc::bind
