#include "rannc/profile/measure.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "profile/operands.h"
#include "profile/time_node.h"
#include "rannc/cost/scaled_estimate.h"
#include "rannc/ir/shard.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::profile {
namespace {

using cost::NodeCost;

/// Stands for saved bytes, which come later, where a node could not be timed.
constexpr int64_t kNotTimed = -1;

bool is_timed(const std::vector<NodeCost>& costs) { return costs[0].saved_bytes != kNotTimed; }

/// What is timed: the first node of each signature, and which nodes cost the same.
struct Work {
  std::vector<ir::NodeId> representatives;
  std::vector<size_t> signature_of;  // [node] index into representatives
};

std::string signature_at(const ir::Graph& graph, ir::NodeId node,
                         const std::vector<OperandStrides>& strides) {
  std::string key = cost::signature(graph, node);
  for (const OperandStrides& at_rows : strides) {
    for (const std::vector<int64_t>& operand : at_rows[node.index]) {
      key += c10::str(';', c10::IntArrayRef(operand));
    }
  }
  return key;
}

Work distinct(const ir::Graph& graph, const std::vector<OperandStrides>& strides) {
  Work work;
  std::unordered_map<std::string, size_t> known;
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const auto [found, fresh] =
        known.emplace(signature_at(graph, {index}, strides), work.representatives.size());
    if (fresh) work.representatives.push_back({index});
    work.signature_of.push_back(found->second);
  }
  return work;
}

bool depends_on_rows(const std::vector<ir::AffineInt>& numbers) {
  return std::ranges::any_of(numbers, &ir::AffineInt::depends_on_rows);
}

/// Whether a size or a literal of the node changes with the rows.
bool varies(const ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph[id];
  for (const ir::Argument& argument : node.inputs) {
    const auto* number = std::get_if<ir::AffineInt>(&argument);
    const auto* numbers = std::get_if<std::vector<ir::AffineInt>>(&argument);
    if (number != nullptr && number->depends_on_rows()) return true;
    if (numbers != nullptr && depends_on_rows(*numbers)) return true;
  }
  const auto varying = [&](ir::ValueId value) {
    return value.valid() && depends_on_rows(graph[value].dims);
  };
  return std::ranges::any_of(graph.operands(id), varying) ||
         std::ranges::any_of(node.outputs, varying);
}

/// Parameters, and what each operator writes: what a step touches between two uses of a weight.
int64_t step_bytes(const ir::Graph& graph, int64_t rows) {
  int64_t bytes = 0;
  for (const ir::Value& value : graph.values) bytes += value.bytes(rows);
  return bytes;
}

/// Times one signature after the other, and remembers which could not run.
class Measurer {
 public:
  Measurer(const ir::Graph& graph, const ops::Objects& objects, const MeasureOptions& options)
      : graph_(graph),
        objects_(objects),
        options_(options),
        random_state_(options.device),
        bench_(options.device, step_bytes(graph, options.rows.back()), options.cache_bytes) {}

  std::vector<NodeCost> measure(ir::NodeId node) {
    std::vector<NodeCost> costs;
    if (ir::is_collective(graph_[node])) {  // that follows from the links
      costs.resize(options_.rows.size());
      return costs;
    }
    try {
      for (int64_t rows : options_.rows) {
        if (!costs.empty() && !varies(graph_, node)) {
          costs.push_back(costs.front());
        } else {
          costs.push_back(time_node(graph_, node, objects_, operands(node, rows), rows,
                                    options_.repeats, bench_));
        }
      }
    } catch (const std::exception& error) {
      failures_.emplace_back(node, error.what());
      costs.assign(options_.rows.size(), NodeCost{.saved_bytes = kNotTimed});
    }
    return costs;
  }

  /// Of this rank.
  void warn_of_failures(const cost::ScaledEstimate& estimate) const {
    for (const auto& [node, error] : failures_) {
      log::warn("profile", c10::str("cannot time ", error,
                                    "\n  its cost is estimated: ", estimate.basis(node)));
    }
  }

 private:
  std::vector<at::Tensor> operands(ir::NodeId node, int64_t rows) {
    std::vector<std::vector<int64_t>> strides;
    if (!options_.strides.empty()) {
      const auto& low = options_.strides.front()[node.index];
      const auto& high = options_.strides.back()[node.index];
      for (size_t i = 0; i < low.size(); ++i) {
        strides.push_back(
            strides_at(low[i], options_.rows.front(), high.at(i), options_.rows.back(), rows));
      }
    }
    return random_operands(graph_, node, rows, options_.device, generator_, strides);
  }

  const ir::Graph& graph_;
  const ops::Objects& objects_;
  const MeasureOptions& options_;
  RandomStateGuard random_state_;
  Bench bench_;
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/0);
  std::vector<std::pair<ir::NodeId, std::string>> failures_;
};

static_assert(std::is_trivially_copyable_v<NodeCost>);

void append(std::string& bytes, const std::vector<NodeCost>& costs) {
  bytes.append(reinterpret_cast<const char*>(costs.data()), costs.size() * sizeof(NodeCost));
}

/// Costs of `nodes`, [index][row index]: the r-th of the ranks that share them measures every
/// `sharers`-th from r on.
std::vector<std::vector<NodeCost>> share(const std::vector<ir::NodeId>& nodes, Measurer& measurer,
                                         comm::Communicator& comm, const MeasureOptions& options) {
  const size_t total = nodes.size();
  const auto size = static_cast<size_t>(comm.size());
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<int>& sharing = options.ranks.empty() ? ranks : options.ranks;
  const size_t sharers = sharing.size();
  const auto first = static_cast<size_t>(std::ranges::find(sharing, comm.rank()) - sharing.begin());
  const size_t mine_ends = first < sharers ? total : 0;
  const int mine =
      static_cast<int>((mine_ends + sharers - 1 - std::min(first, sharers - 1)) / sharers);
  std::string bytes;
  int done = 0;
  for (size_t i = first; i < mine_ends; i += sharers) {
    append(bytes, measurer.measure(nodes[i]));
    if (options.progress) options.progress(++done, mine);
  }

  std::vector<std::string> all{bytes};
  if (size > 1) {
    all = comm::all_gather(comm, bytes, ranks, {.what = "measured costs"});
  }
  std::vector<std::vector<NodeCost>> costs(total, std::vector<NodeCost>(options.rows.size()));
  const size_t stride = options.rows.size() * sizeof(NodeCost);
  for (size_t i = 0; i < total; ++i) {
    const int rank = sharing[i % sharers];
    const std::string& from = all.at(static_cast<size_t>(rank));
    RANNC_CHECK(from.size() >= (i / sharers + 1) * stride,
                c10::str("rank ", rank, " measured ", from.size(), " bytes of costs, too few"));
    std::memcpy(costs[i].data(), from.data() + i / sharers * stride, stride);
  }
  return costs;
}

/// Costs of all signatures; only those that are not known are timed.
std::vector<std::vector<NodeCost>> complete(const Work& work, const std::vector<std::string>& keys,
                                            Measurer& measurer, comm::Communicator& comm,
                                            const MeasureOptions& options, KnownCosts& known) {
  std::vector<std::vector<NodeCost>> costs;
  std::vector<ir::NodeId> unknown;
  std::vector<size_t> places;
  for (ir::NodeId node : work.representatives) {
    const auto found = known.find(keys[node.index]);
    const bool usable = found != known.end() && found->second.size() == options.rows.size();
    if (!usable) {
      places.push_back(costs.size());
      unknown.push_back(node);
    }
    costs.push_back(usable ? found->second : std::vector<NodeCost>());
  }
  const std::vector<std::vector<NodeCost>> timed = share(unknown, measurer, comm, options);
  for (size_t i = 0; i < unknown.size(); ++i) {
    costs[places[i]] = timed[i];
    const std::string& key = keys[unknown[i].index];
    if (!key.empty() && is_timed(timed[i])) known.insert_or_assign(key, timed[i]);
  }
  return costs;
}

/// The same on all ranks, as what was timed is.
void estimate_others(const ir::Graph& graph, const std::vector<bool>& timed,
                     const Measurer& measurer, cost::CostTable& table) {
  const cost::ScaledEstimate estimate(graph, table, timed);
  for (uint32_t index = 0; index < timed.size(); ++index) {
    if (!timed[index]) table.node[index] = estimate.costs({index});
  }
  measurer.warn_of_failures(estimate);
}

}  // namespace

std::vector<std::string> keys(const ir::Graph& graph, const MeasureOptions& options) {
  std::vector<std::string> keys;
  const std::string cache = Cache::describe(step_bytes(graph, options.rows.back()));
  for (uint32_t index = 0; index < graph.nodes.size(); ++index) {
    const ir::Node& node = graph.nodes[index];
    if (node.kind != ir::OpKind::dispatcher || ir::is_collective(node)) {
      keys.emplace_back();
      continue;
    }
    keys.push_back(c10::str(signature_at(graph, {index}, options.strides), "|rows ",
                            c10::IntArrayRef(options.rows), "|", cache));
  }
  return keys;
}

cost::CostTable measure(const ir::Graph& graph, const ops::Objects& objects,
                        const std::vector<std::vector<int64_t>>& saved, comm::Communicator& comm,
                        const MeasureOptions& options, KnownCosts& known) {
  RANNC_CHECK(
      saved.empty() || saved.size() == graph.nodes.size(),
      c10::str("saved bytes of ", saved.size(), " nodes, but the graph has ", graph.nodes.size()));
  // Casts are nodes of the graph.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const OperandStrides& strides : options.strides) {
    RANNC_CHECK(
        strides.size() == graph.nodes.size(),
        c10::str("strides of ", strides.size(), " nodes, but the graph has ", graph.nodes.size()));
  }
  const Work work = distinct(graph, options.strides);
  Measurer measurer(graph, objects, options);
  const std::vector<std::vector<NodeCost>> costs =
      complete(work, keys(graph, options), measurer, comm, options, known);

  cost::CostTable table;
  table.rows = options.rows;
  std::vector<bool> timed;  // [node]
  for (const size_t signature : work.signature_of) {
    table.node.push_back(costs[signature]);
    timed.push_back(is_timed(costs[signature]));
  }
  if (std::ranges::count(timed, false) > 0) estimate_others(graph, timed, measurer, table);
  for (size_t index = 0; index < graph.nodes.size(); ++index) {
    std::vector<NodeCost>& node = table.node[index];
    for (size_t i = 0; i < node.size(); ++i) {
      node[i].saved_bytes = saved.empty() ? 0 : saved[index].at(i);
    }
  }
  cost::verify(table, graph);
  return table;
}

}  // namespace rannc::profile
