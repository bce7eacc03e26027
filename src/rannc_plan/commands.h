#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

// One function for each command of `rannc-plan`: answers go to `out`, the result is the exit code.
// Bad input is a ConfigError.
namespace rannc::rannc_plan {

struct PlanArguments {
  std::string graph, cluster, request, output;  ///< paths; the last two may be empty
  std::optional<int64_t> global_batch;          ///< instead of a request
  std::optional<double> time_limit_s;
  int threads = 0;  ///< 0: one for each core
  std::vector<std::string> pins, whole;
  bool json = false;
  bool progress = false;  ///< as lines for another program
};
int plan_command(const PlanArguments& arguments, std::ostream& out, std::ostream& err);

struct EvaluateArguments {
  std::string graph, cluster, request, plan;
  std::optional<int64_t> global_batch;
  bool json = false;
};
int evaluate_command(const EvaluateArguments& arguments, std::ostream& out);

struct ShowArguments {
  std::string plan;
  std::string graph;                    ///< that the plan must be of; may be empty
  std::optional<int64_t> global_batch;  ///< where the plan's notes do not say it
  std::optional<size_t> width;          ///< columns; default: the terminal's
  bool timeline = false;
  bool names = false;  ///< of all operators
};
int show_command(const ShowArguments& arguments, std::ostream& out);

struct ExplainArguments {
  std::string plan, module;
  std::optional<size_t> width;
};
int explain_command(const ExplainArguments& arguments, std::ostream& out);

}  // namespace rannc::rannc_plan
