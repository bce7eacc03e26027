#include "rannc/cost/cost_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "rannc/util/error.h"
#include "rannc/util/json.h"

namespace rannc::cost {
namespace {

using json::Place;

struct Field {
  const char* name;
  int64_t NodeCost::*member;
};
constexpr Field kFields[] = {{"forward_ns", &NodeCost::forward_ns},
                             {"backward_ns", &NodeCost::backward_ns},
                             {"saved_bytes", &NodeCost::saved_bytes},
                             {"workspace_bytes", &NodeCost::workspace_bytes}};
/// Of accelerators; left out where all are 0.
constexpr Field kHostFields[] = {{"forward_host_ns", &NodeCost::forward_host_ns},
                                 {"backward_host_ns", &NodeCost::backward_host_ns}};

void read_field(Place array, const Field& field, std::vector<NodeCost>& costs) {
  const std::vector<Place> numbers = array.elements();
  if (numbers.size() != costs.size()) {
    array.fail(fmt::format("{} numbers, but 'rows' has {}", numbers.size(), costs.size()));
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i].*field.member = numbers[i].integer(0, INT64_MAX);
  }
}

std::vector<NodeCost> read_node(Place place, size_t rows) {
  place.allow_only({"forward_ns", "backward_ns", "saved_bytes", "workspace_bytes",
                    "forward_host_ns", "backward_host_ns"});
  std::vector<NodeCost> costs(rows);
  for (const Field& field : kFields) read_field(place.at(field.name), field, costs);
  for (const Field& field : kHostFields) {
    if (const auto array = place.find(field.name)) read_field(*array, field, costs);
  }
  return costs;
}

void write_field(std::string& text, const std::vector<NodeCost>& costs, const Field& field) {
  std::string numbers;
  for (const NodeCost& cost : costs) {
    fmt::format_to(std::back_inserter(numbers), "{}{}", numbers.empty() ? "" : ", ",
                   cost.*field.member);
  }
  fmt::format_to(std::back_inserter(text), "{}\"{}\": [{}]", text.empty() ? "" : ", ", field.name,
                 numbers);
}

std::string node_text(const std::vector<NodeCost>& costs) {
  std::string text;
  for (const Field& field : kFields) write_field(text, costs, field);
  for (const Field& field : kHostFields) {
    const auto is_set = [&](const NodeCost& cost) { return cost.*field.member != 0; };
    if (std::ranges::any_of(costs, is_set)) write_field(text, costs, field);
  }
  return "{" + text + "}";
}

}  // namespace

void verify(const CostTable& table, const ir::Graph& graph) {
  if (table.rows.empty())
    throw ConfigError("cost table: rows: expected at least one number of rows");
  for (size_t i = 0; i < table.rows.size(); ++i) {
    if (table.rows[i] < 1 || (i > 0 && table.rows[i] <= table.rows[i - 1])) {
      throw ConfigError(
          fmt::format("cost table: rows[{}]: rows must be at least 1 and rise strictly, found {}",
                      i, table.rows[i]));
    }
  }
  if (table.node.size() != graph.nodes.size()) {
    throw ConfigError(fmt::format("cost table: has {} nodes, but graph '{}' has {}",
                                  table.node.size(), graph.name, graph.nodes.size()));
  }
  for (size_t index = 0; index < table.node.size(); ++index) {
    const std::vector<NodeCost>& costs = table.node[index];
    if (costs.size() != table.rows.size()) {
      throw ConfigError(fmt::format("cost table: node '{}' has costs at {} numbers of rows, not {}",
                                    graph.nodes[index].name, costs.size(), table.rows.size()));
    }
    for (const NodeCost& cost : costs) {
      const auto check = [&](const Field& field) {
        if (cost.*field.member >= 0) return;
        throw ConfigError(fmt::format("cost table: node '{}': {} is {}, below 0",
                                      graph.nodes[index].name, field.name, cost.*field.member));
      };
      std::ranges::for_each(kFields, check);
      std::ranges::for_each(kHostFields, check);
    }
  }
}

std::string to_json(const CostTable& table) {
  std::string nodes;
  for (const std::vector<NodeCost>& costs : table.node) {
    nodes += (nodes.empty() ? "\n  " : ",\n  ") + node_text(costs);
  }
  return fmt::format(
      "{{\"format\": \"rannc-cost-table\", \"version\": 1, \"rows\": [{}],\n \"nodes\": [{}]}}\n",
      fmt::join(table.rows, ", "), nodes);
}

CostTable cost_table_from_json(std::string_view text) {
  const json::Document document(text, "cost table");
  const Place root = document.root();
  root.expect_format("rannc-cost-table", 1);
  root.allow_only({"format", "version", "rows", "nodes"});
  CostTable table;
  for (Place rows : root.at("rows").elements()) {
    table.rows.push_back(rows.integer(1, INT64_MAX));
    if (table.rows.size() > 1 && table.rows.back() <= table.rows[table.rows.size() - 2]) {
      rows.fail(fmt::format("rows must rise strictly, found {}", table.rows.back()));
    }
  }
  if (table.rows.empty()) root.at("rows").fail("expected at least one number of rows");
  for (Place node : root.at("nodes").elements()) {
    table.node.push_back(read_node(node, table.rows.size()));
  }
  return table;
}

}  // namespace rannc::cost
