#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "rannc/partition/evaluate.h"
#include "rannc/plan/show.h"
#include "rannc/util/error.h"
#include "rannc_plan/commands.h"
#include "rannc_plan/files.h"
#include "rannc_plan/inputs.h"
#include "rannc_plan/run.h"
#include "rannc_plan/terminal.h"

namespace rannc::rannc_plan {
namespace {

using partition::Evaluation;
using Json = nlohmann::ordered_json;

// A plan of another graph has as many problems as nodes.
constexpr size_t kShownProblems = 20;

Json shown_problems(const Evaluation& evaluation) {
  Json problems = Json::array();
  for (const std::string& problem : evaluation.problems) {
    if (problems.size() == kShownProblems) break;
    problems.push_back(problem);
  }
  const size_t more = evaluation.problems.size() - problems.size();
  if (more > 0) problems.push_back(fmt::format("and {} more", more));
  return problems;
}

/// A `rannc-evaluation`: the verdict, and of the plan file what is computed.
std::string to_json(const plan::Plan& plan, const Evaluation& evaluation) {
  Json json{{"format", "rannc-evaluation"},
            {"version", 1},
            {"valid", evaluation.problems.empty()},
            {"problems", shown_problems(evaluation)}};
  if (!evaluation.stages.empty()) {
    const Json computed = Json::parse(plan::to_json(plan));
    json["iteration_ns"] = computed["iteration_ns"];
    if (evaluation.iteration_price > 0) json["iteration_price"] = evaluation.iteration_price;
    json["stages"] = Json::array();
    for (const Json& stage : computed["stages"]) json["stages"].push_back(stage["predicted"]);
    json["parts"] = computed["notes"]["parts"];
    json["transfers"] = computed["notes"]["transfers"];
  }
  return json.dump(1) + "\n";
}

}  // namespace

int evaluate_command(const EvaluateArguments& arguments, std::ostream& out) {
  plan::Plan plan = load_plan(arguments.plan, /*with_notes=*/false);
  const Inputs inputs =
      load_inputs(arguments.graph, arguments.cluster, arguments.request, arguments.global_batch);
  const Evaluation evaluation = evaluate(inputs.graph, inputs.cluster, inputs.request, plan);
  if (!evaluation.stages.empty()) {  // else its structure gives it no time
    plan = described(inputs.graph, inputs.cluster, inputs.request, std::move(plan), evaluation);
  }
  if (arguments.json) {
    out << to_json(plan, evaluation);
  } else {
    if (evaluation.problems.empty()) {
      out << "The plan is valid and fits.\n\n";
    } else {
      out << "The plan is invalid:\n";
      for (const auto& problem : shown_problems(evaluation)) {
        out << "  " << problem.get<std::string>() << '\n';
      }
      out << '\n';
    }
    if (!evaluation.stages.empty()) out << plan::show(plan, terminal_width());
    if (evaluation.iteration_price > 0) {
      out << fmt::format("\nAn iteration costs {:.3g}.\n", evaluation.iteration_price);
    }
  }
  return evaluation.problems.empty() ? kDone : kDoesNotFit;
}

}  // namespace rannc::rannc_plan
