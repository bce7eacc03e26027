#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <thread>

#include "rannc/partition/planner.h"
#include "rannc/plan/show.h"
#include "rannc/util/error.h"
#include "rannc_plan/bar.h"
#include "rannc_plan/commands.h"
#include "rannc_plan/files.h"
#include "rannc_plan/inputs.h"
#include "rannc_plan/interrupts.h"
#include "rannc_plan/run.h"
#include "rannc_plan/terminal.h"

namespace rannc::rannc_plan {
namespace {

/// "MODULE=STAGE", where the stage is a number or "last".
partition::Pin read_pin(const std::string& text) {
  const size_t equals = text.rfind('=');
  const std::string stage = equals == std::string::npos ? "" : text.substr(equals + 1);
  partition::Pin pin{.module = text.substr(0, equals), .stage = -1};
  const char* end = stage.data() + stage.size();
  const auto [stop, error] = std::from_chars(stage.data(), end, pin.stage);
  const bool is_number = error == std::errc() && stop == end && pin.stage >= 0;
  if (pin.module.empty() || (!is_number && stage != "last")) {
    throw ConfigError(fmt::format(
        "--pin: expected MODULE=STAGE, with a stage's number or 'last', found '{}'", text));
  }
  if (!is_number) pin.stage = -1;
  return pin;
}

/// Hears how far the search is; tells people by `bar`, and who has asked for it by lines.
std::function<void(double)> listener(const PlanArguments& arguments, Bar& bar, std::ostream& err) {
  if (!arguments.progress) return [&bar](double share) { bar.at(share); };
  return [&err](double share) {
    // 1 comes at the end.
    if (share < 1) err << fmt::format("progress {:.4f}\n", std::min(share, 0.9999)) << std::flush;
  };
}

partition::PlannerOptions options_of(const PlanArguments& arguments, const Interrupts& interrupts) {
  partition::PlannerOptions options;
  for (const std::string& pin : arguments.pins) options.pins.push_back(read_pin(pin));
  options.whole = arguments.whole;
  if (arguments.time_limit_s) {
    options.time_limit_s = *arguments.time_limit_s;
    options.stop = interrupts.requested();
  }
  options.threads = arguments.threads > 0
                        ? arguments.threads
                        : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return options;
}

}  // namespace

int plan_command(const PlanArguments& arguments, std::ostream& out, std::ostream& err) {
  const Interrupts interrupts(/*ends_the_program=*/!arguments.time_limit_s);
  partition::PlannerOptions options = options_of(arguments, interrupts);
  if (!arguments.output.empty()) check_writable(arguments.output);
  const Inputs inputs =
      load_inputs(arguments.graph, arguments.cluster, arguments.request, arguments.global_batch);
  Bar bar("planning", err, stderr_is_watched());
  options.progress = listener(arguments, bar, err);
  const plan::Plan plan =
      partition::make_plan(inputs.graph, inputs.cluster, inputs.request, options);
  bar.clear();
  if (arguments.progress) err << "progress 1\n" << std::flush;
  const std::string text = plan::to_json(plan);
  if (!arguments.output.empty()) write_file(arguments.output, text);
  if (arguments.json) out << text;
  if (!plan.feasible) {
    err << plan::show_reason(plan) << '\n';
    return kDoesNotFit;
  }
  if (!arguments.json) out << plan::show(plan, terminal_width());
  const bool asked = !arguments.request.empty();
  if (!asked && plan.schedule != plan::Schedule::gpipe && !returns_loss(inputs.graph)) {
    err << fmt::format(
        "The model returns no loss, which schedule {} needs: compute it in forward(), or plan with "
        "a --request that has \"schedules\": [\"gpipe\"].\n",
        plan::name(plan.schedule));
  }
  return kDone;
}

}  // namespace rannc::rannc_plan
