#pragma once

#include <string>

#include "rannc/plan/plan.h"
#include "rannc/util/json.h"

// Version 1 of the plan file knows a few keys; all others are its notes. Among them are fields of
// Plan that steer or are compared, beside what is for show alone.
namespace rannc::plan {

/// The notes of the file as text: Plan::notes and these fields; empty where there is neither.
[[nodiscard]] std::string notes_with_typed(const Plan& plan);

/// Takes the fields of `plan`, whose stages are known, out of a file's notes; Plan::notes is the
/// rest.
void read_typed_notes(const json::Place& notes, Plan& plan);

}  // namespace rannc::plan
