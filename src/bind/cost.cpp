#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <utility>

#include "bind/module.h"
#include "rannc/cost/cluster.h"
#include "rannc/cost/cost_table.h"
#include "rannc/cost/device_model.h"
#include "rannc/cost/fold_modules.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/cost/group_costs.h"

namespace rannc::bind {
namespace {

using namespace py::literals;
using cost::Cluster;
using cost::CostTable;
using cost::DeviceModel;
using cost::GraphProfile;
using cost::Link;
using cost::MatrixWork;
using cost::NodeCost;
using cost::SavedStorage;

Cluster make_cluster(int hosts, int devices_per_host, double device_memory_bytes,
                     const Link& intra_host, const Link& inter_host, int links_per_host,
                     std::vector<int> host_of_rank, std::vector<double> speed_of_host) {
  Cluster cluster{hosts,
                  devices_per_host,
                  device_memory_bytes,
                  intra_host,
                  inter_host,
                  links_per_host,
                  /*price_per_device_hour=*/0,
                  std::move(host_of_rank),
                  std::move(speed_of_host)};
  cost::verify(cluster);
  return cluster;
}

/// A Link from a dictionary with its two keys, so that scripts need not name the class.
Link link_from(const py::dict& keys) { return py::cast<Link>(py::type::of<Link>()(**keys)); }

}  // namespace

void init_cost(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  py::class_<Link>(m, "Link")
      .def(py::init([](double bandwidth, double latency) {
             return Link{bandwidth, latency};
           }),
           py::kw_only(), "bandwidth_bytes_per_s"_a, "latency_ns"_a)
      .def(py::init(&link_from), "keys"_a)
      .def_readonly("bandwidth_bytes_per_s", &Link::bandwidth_bytes_per_s)
      .def_readonly("latency_ns", &Link::latency_ns)
      .def(py::self == py::self);
  py::implicitly_convertible<py::dict, Link>();

  py::class_<Cluster>(m, "Cluster")
      .def(py::init(&make_cluster), py::kw_only(), "hosts"_a, "devices_per_host"_a,
           "device_memory_bytes"_a, "intra_host"_a, "inter_host"_a = Link{}, "links_per_host"_a = 1,
           "host_of_rank"_a = std::vector<int>{}, "speed_of_host"_a = std::vector<double>{})
      .def_static("from_toml", &cost::cluster_from_toml, "toml"_a, "file_name"_a = "cluster.toml")
      .def("to_toml", &cost::to_toml)
      .def_property_readonly("ranks", &Cluster::ranks)
      .def("host_of", &Cluster::host_of, "rank"_a)
      .def_readonly("hosts", &Cluster::hosts)
      .def_readonly("devices_per_host", &Cluster::devices_per_host)
      .def_readonly("device_memory_bytes", &Cluster::device_memory_bytes)
      .def_readonly("intra_host", &Cluster::intra_host)
      .def_readonly("inter_host", &Cluster::inter_host)
      .def_readonly("links_per_host", &Cluster::links_per_host)
      .def_readonly("host_of_rank", &Cluster::host_of_rank)
      .def_readonly("speed_of_host", &Cluster::speed_of_host)
      .def(py::self == py::self);

  py::class_<NodeCost>(m, "NodeCost")
      .def_readonly("forward_ns", &NodeCost::forward_ns)
      .def_readonly("backward_ns", &NodeCost::backward_ns)
      .def_readonly("saved_bytes", &NodeCost::saved_bytes)
      .def_readonly("workspace_bytes", &NodeCost::workspace_bytes)
      .def_readonly("forward_host_ns", &NodeCost::forward_host_ns)
      .def_readonly("backward_host_ns", &NodeCost::backward_host_ns)
      .def(py::self == py::self);

  py::class_<CostTable>(m, "CostTable")
      .def_static("from_json", &cost::cost_table_from_json, "json"_a, Unlocked())
      .def("to_json", py::overload_cast<const CostTable&>(&cost::to_json), Unlocked())
      .def_readonly("rows", &CostTable::rows)
      .def_readonly("node", &CostTable::node)
      .def(py::self == py::self);

  py::class_<SavedStorage>(m, "SavedStorage")
      .def(py::init([](std::vector<uint32_t> nodes, std::vector<double> bytes) {
             return SavedStorage{std::move(nodes), std::move(bytes)};
           }),
           "nodes"_a, "bytes"_a)
      .def_readonly("nodes", &SavedStorage::nodes)
      .def_readonly("bytes", &SavedStorage::bytes);

  py::class_<GraphProfile>(m, "GraphProfile")
      .def_static("from_json", &cost::graph_profile_from_json, "json"_a, Unlocked())
      .def("to_json", py::overload_cast<const GraphProfile&>(&cost::to_json), Unlocked())
      .def_readonly("name", &GraphProfile::name)
      .def_readonly("rows", &GraphProfile::rows)
      .def_property_readonly("node_count", [](const GraphProfile& p) { return p.nodes.size(); })
      .def(py::self == py::self);

  py::class_<DeviceModel>(m, "DeviceModel")
      .def_readonly("name", &DeviceModel::name)
      .def_readonly("memory_bytes", &DeviceModel::memory_bytes);

  py::class_<MatrixWork>(m, "MatrixWork")
      .def_readonly("flops", &MatrixWork::flops)
      .def_readonly("peak_s", &MatrixWork::peak_s);

  m.def("verify", py::overload_cast<const CostTable&, const ir::Graph&>(&cost::verify), "table"_a,
        "graph"_a, Unlocked());
  m.def(
      "fold",
      [](const ir::Graph& graph, const CostTable& table, const std::vector<double>& optimizer_bytes,
         const std::vector<SavedStorage>& saved) {
        return cost::fold(graph, table, optimizer_bytes, saved);
      },
      "graph"_a, "table"_a, "optimizer_bytes"_a = std::vector<double>{},
      "saved"_a = std::vector<SavedStorage>{}, Unlocked());
  m.def(
      "fold_group",
      [](const ir::Graph& whole, const ir::ShardedGraph& sharded, CostTable table,
         const std::vector<double>& optimizer_bytes, const std::vector<SavedStorage>& saved,
         int ways, const Link& link) {
        cost::GroupCosts costs =
            cost::of_whole_nodes(whole, sharded, std::move(table), saved, ways, link);
        const ir::Graph local = ir::with_sizes_of(whole, sharded);
        const cost::NodePairs joined = ir::joined_by_parts(whole, sharded);
        return std::pair(cost::fold(local, costs.table, optimizer_bytes, costs.saved, joined),
                         std::move(costs.saved));
      },
      "whole"_a, "sharded"_a, "table"_a, "optimizer_bytes"_a, "saved"_a, "ways"_a, "link"_a,
      Unlocked(),
      "What one of the ranks that compute layers together does, by nodes of the whole.");
  m.def(
      "collective_ns",
      [](const ir::Graph& sharded, int ways, int64_t rows, const Link& link) {
        return cost::time_ns(ir::all_traffic(sharded, ways, rows), link);
      },
      "sharded"_a, "ways"_a, "rows"_a, "link"_a, Unlocked());
  m.def(
      "of_groups",
      [](const Cluster& cluster, int ways) {
        Link link;
        Cluster groups = cost::of_groups(cluster, ways, &link);
        return std::pair(std::move(groups), link);
      },
      "cluster"_a, "ways"_a, "Groups of ranks as devices, and the link between the ranks of one.");
  m.def("fold_modules", &cost::fold_modules, "profile"_a, "depth"_a = 0, Unlocked());
  m.def("device_model", &cost::device_model, "name"_a);
  m.def("estimate", &cost::estimate, "graph"_a, "device"_a, "rows"_a,
        "saved"_a = std::vector<std::vector<int64_t>>{}, Unlocked());
  m.def("training_work", &cost::training_work, "graph"_a, "device"_a, "rows"_a, Unlocked());
  m.def(
      "signature",
      [](const ir::Graph& graph, uint32_t node) { return cost::signature(graph, {node}); },
      "graph"_a, "node"_a);
}

}  // namespace rannc::bind
