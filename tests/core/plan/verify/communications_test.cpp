#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "plan/graphs.h"
#include "rannc/plan/program.h"
#include "rannc/util/error.h"

namespace rannc::plan {
namespace {

/// Two replicas, whose batch normalisation takes the statistics of the whole batch, and a second
/// stage of one rank.
ir::Graph graph() {
  GraphMaker maker;
  const auto a = maker.node("n0", {maker.input("x"), maker.parameter("w0"), maker.parameter("v0")});
  const auto b = maker.node("norm", {a});
  ir::Node& norm = maker.graph.nodes.back();
  norm.op = "aten::batch_norm";
  norm.whole_batch = true;
  norm.inputs.insert(norm.inputs.end(), {ir::None{}, ir::None{}, maker.buffer("mean"),
                                         maker.buffer("var"), true, 0.1, 1e-5, false});
  maker.graph.outputs = {maker.reduced("n1", {b}, ir::RowKind::mean)};
  return maker.graph;
}

Program good() {
  Plan plan = chain_plan({2, 1}, 1);
  plan.stages[0].nodes.push_back("norm");
  plan.bucket_bytes = 16;
  return lower(plan, graph(), {2, 2, 2}, true);
}

Communication& first(Program& program, CommunicationKind kind) {
  return *std::ranges::find(program.order, kind, &Communication::kind);
}

struct Damage {
  const char* what;
  std::function<void(Program&)> apply;
  const char* message;
};

const Damage kDamages[] = {
    {"a parameter in no bucket", [](Program& program) { program.buckets[0].pop_back(); },
     "leave a parameter out"},
    {"a parameter in two buckets",
     [](Program& program) { program.buckets[0][0] = program.buckets[0][1]; }, "twice"},
    {"an empty bucket", [](Program& program) { program.buckets[0].emplace_back(); }, "is empty"},
    {"no buckets", [](Program& program) { program.buckets.clear(); }, "have buckets for 0"},
    {"a transfer without a place",
     [](Program& program) { program.order.erase(program.order.begin()); },
     "no place in the order is for the rows of value 0"},
    {"a transfer with two places",
     [](Program& program) { program.order.push_back(program.order[0]); }, "is in the order twice"},
    {"a bucket that does not exist",
     [](Program& program) { first(program, CommunicationKind::bucket).part = 7; },
     "none of its own"},
    {"statistics of another node",
     [](Program& program) { first(program, CommunicationKind::statistics).part = 0; },
     "node 0 has no statistics"},
    {"statistics in a stage of one rank",
     [](Program& program) { first(program, CommunicationKind::statistics).index = 1; },
     "are gathered in stage 1"},
    {"statistics twice",
     [](Program& program) {
       program.order.push_back(first(program, CommunicationKind::statistics));
     },
     "gathered twice"},
    {"statistics not gathered backward",
     [](Program& program) {
       std::erase_if(program.order, [](const Communication& one) {
         return one.kind == CommunicationKind::statistics && one.direction == Direction::backward;
       });
     },
     "are not gathered backward"},
    {"statistics gathered backward only",
     [](Program& program) {
       std::erase_if(program.order, [](const Communication& one) {
         return one.kind == CommunicationKind::statistics && one.direction == Direction::forward;
       });
     },
     "backward, but not forward"},
    {"a rank without issues", [](Program& program) { program.issues.pop_back(); },
     "2 of 3 ranks issue"},
    {"an issue forgotten", [](Program& program) { program.issues[2].pop_back(); },
     "not the 6 of its own"},
    {"an issue of another's",
     [](Program& program) { program.issues[2][0].place = program.issues[0][0].place; },
     "not the 6 of its own, each once"},
    {"an issue inside of a message", [](Program& program) { program.issues[1].back().action = 0; },
     "inside action 0"},
    {"an issue after the end", [](Program& program) { program.issues[1].back().action = 1000; },
     "inside action 1000"},
};

TEST(Communications, AreRightInWhatLowerMakes) { EXPECT_NO_THROW(verify(good(), graph())); }

TEST(Communications, AreWrongWithEveryKindOfDamage) {
  for (const Damage& damage : kDamages) {
    Program program = good();
    damage.apply(program);
    try {
      verify(program, graph());
      ADD_FAILURE() << damage.what << " was not found";
    } catch (const PlanError& error) {
      EXPECT_NE(std::string(error.what()).find(damage.message), std::string::npos)
          << damage.what << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace rannc::plan
