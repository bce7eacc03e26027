#include <fmt/format.h>

#include "rannc/plan/plan.h"
#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::plan {

std::string_view name(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe:
      return "gpipe";
    case Schedule::one_f_one_b:
      return "1f1b";
    case Schedule::interleaved:
      return "interleaved";
  }
  RANNC_CHECK(false, "a schedule without a name");
}

Schedule schedule_from_name(std::string_view text) {
  if (text == "gpipe" || text == "fill_drain") return Schedule::gpipe;
  if (text == "1f1b") return Schedule::one_f_one_b;
  if (text == "interleaved") return Schedule::interleaved;
  throw ConfigError(fmt::format("unknown schedule '{}'; did you mean '{}'?", text,
                                closest(text, {"gpipe", "1f1b", "interleaved"})));
}

}  // namespace rannc::plan
