#include "rannc/plan/show.h"
#include "rannc_plan/commands.h"
#include "rannc_plan/files.h"
#include "rannc_plan/run.h"
#include "rannc_plan/terminal.h"

namespace rannc::rannc_plan {

int show_command(const ShowArguments& arguments, std::ostream& out) {
  const plan::Plan plan = load_plan(arguments.plan);
  const size_t width = arguments.width ? *arguments.width : terminal_width();
  call_by_path(arguments.plan, "plan: ", [&] {
    out << (arguments.timeline ? plan::show_timeline(plan, width)
                               : plan::show(plan, width, arguments.global_batch));
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
