#include <gtest/gtest.h>

#include "rannc/plan/show.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

const char* const kGroups =
    R"json({"format": "rannc-plan", "version": 2, "feasible": true, "schedule": "1f1b", "interleave": 1, "micro_batches": 2, "iteration_ns": 0,
 "stages": [
  {"nodes": ["h.up", "h.norm"], "ranks": [0, 1], "recompute": false, "mesh": [1, 2], "factors": {"h.up.weight:0": "y", "h.q.weight:0": "y"},
   "notes": {"group": {"parameter_bytes": 4096, "cut_bytes": 3072, "collective_bytes": 2048, "collective_ns": 1500000, "whole": ["aten::sort (module 'h', model.py:7) needs all of 'h.up.weight:0'"], "more_whole": 3}}},
  {"nodes": ["head"], "ranks": [2, 3], "recompute": false, "mesh": [1, 2], "factors": {}}],
 "notes": {"hosts": 1, "devices_per_host": 2}}
)json";

TEST(ShowGroups, MeshFactorsBytesAndWhatRunsWhole) {
  EXPECT_EQ("\n" + show(plan_from_json(kGroups), 100), R"(
2 stages on 4 ranks of 4, 2 micro-batches, schedule 1f1b

stage  ranks  modules
-----  -----  ------------
    0  0-1    h.up, h.norm
    1  2-3    head

Layers that groups of ranks compute together; a rank sends for one micro-batch

stage   mesh  parameters  collectives    take  factors
                     cut         send
-----  -----  ----------  -----------  ------  ---------------------------
    0  1 x 2        75 %      2.0 KiB  1.5 ms  h.up.weight:0, h.q.weight:0
    1  1 x 2           -            -       -  none
Whole on each rank of stage 0:
- aten::sort (module 'h', model.py:7) needs all of 'h.up.weight:0'
- and 3 more
)");
}

TEST(ShowGroups, AModuleIsExplainedWithItsGroups) {
  const std::string text = explain(plan_from_json(kGroups), "h.up", 100);
  EXPECT_NE(text.find("Groups of 2 ranks compute its layers together, cut along h.up.weight:0, "
                      "h.q.weight:0.\nOf 4.0 KiB of parameters 3.0 KiB are cut."),
            std::string::npos)
      << text;
}

TEST(ShowGroups, ANoteOfAnotherFormIsAnErrorWithItsPath) {
  std::string wrong = kGroups;
  wrong.replace(wrong.find("3072"), 4, "true");
  try {
    (void)show(plan_from_json(wrong), 100);
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("$.stages[0].notes.group.cut_bytes"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rannc::plan
