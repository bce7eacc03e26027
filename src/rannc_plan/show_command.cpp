#include <fmt/format.h>

#include <string_view>
#include <unordered_set>

#include "rannc/cost/graph_profile.h"
#include "rannc/plan/show.h"
#include "rannc/util/error.h"
#include "rannc_plan/commands.h"
#include "rannc_plan/files.h"
#include "rannc_plan/run.h"
#include "rannc_plan/terminal.h"

namespace rannc::rannc_plan {
namespace {

/// Throws ConfigError unless the plan's stages hold exactly the nodes of the graph.
void check_is_of(const plan::Plan& plan, const std::string& path, const std::string& graph_path) {
  const cost::GraphProfile graph = load_graph(graph_path);
  std::unordered_set<std::string_view> left;
  for (const cost::ProfileNode& node : graph.nodes) left.insert(node.name);
  for (const plan::Stage& stage : plan.stages) {
    for (const std::string& node : stage.nodes) {
      if (left.erase(node) > 0) continue;
      throw ConfigError(
          fmt::format("{} is not a plan of {}: stage {} of the plan has '{}', which "
                      "the graph '{}' does not have",
                      path, graph_path, &stage - plan.stages.data(), node, graph.name));
    }
  }
  if (plan.feasible && !left.empty()) {
    throw ConfigError(
        fmt::format("{} is not a plan of {}: {} nodes of the graph '{}' are on no "
                    "stage, one of them '{}'",
                    path, graph_path, left.size(), graph.name, *left.begin()));
  }
}

}  // namespace

int show_command(const ShowArguments& arguments, std::ostream& out) {
  const plan::Plan plan = load_plan(arguments.plan);
  if (!arguments.graph.empty()) check_is_of(plan, arguments.plan, arguments.graph);
  const size_t width = arguments.width ? *arguments.width : terminal_width();
  call_by_path(arguments.plan, "plan: ", [&] {
    out << (arguments.timeline ? plan::show_timeline(plan, width)
                               : plan::show(plan, width, arguments.global_batch, arguments.names));
  });
  return kDone;
}

int explain_command(const ExplainArguments& arguments, std::ostream& out) {
  const plan::Plan plan = load_plan(arguments.plan);
  const size_t width = arguments.width ? *arguments.width : terminal_width();
  call_by_path(arguments.plan,
               "plan: ", [&] { out << plan::explain(plan, arguments.module, width); });
  return kDone;
}

}  // namespace rannc::rannc_plan
