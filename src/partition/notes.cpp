#include "partition/notes.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace rannc::partition {

std::string search_notes(const plan::Plan& plan, const SearchReport& report) {
  nlohmann::ordered_json notes;
  notes["search"] = report.complete ? "complete" : "cut";
  notes["nodes"] = report.nodes;
  notes["pieces"] = report.pieces;
  notes["blocks"] = report.blocks;
  notes["examined"] = report.examined;
  notes["bound_ns"] = std::llround(report.bound_ns);
  notes["gap"] = static_cast<double>(plan.iteration_ns) / report.bound_ns;
  nlohmann::ordered_json alternatives = nlohmann::ordered_json::array();
  for (const Alternative& other : report.alternatives) {
    alternatives.push_back({{"kind", other.kind},
                            {"schedule", plan::name(other.schedule)},
                            {"micro_batches", other.micro_batches},
                            {"replicas", other.replicas},
                            {"iteration_ns", std::llround(other.parts.iteration_ns())},
                            {"fits", other.fits}});
  }
  notes["alternatives"] = std::move(alternatives);
  return notes.dump();
}

}  // namespace rannc::partition
