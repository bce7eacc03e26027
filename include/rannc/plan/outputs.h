#pragma once

#include <optional>
#include <vector>

#include "rannc/ir/graph.h"
#include "rannc/plan/plan.h"

namespace rannc::plan {

/// What the user gets of a training step whose backward runs before its outputs are returned, and
/// whether an output that several ranks cannot be given is left out or an error.
enum class Outputs {
  loss,  ///< the loss, and other numbers that are means or sums: they travel with it
  all,   ///< everything, each rank its own rows; only the loss has a gradient
};

/// Only fill-drain lets the user's code run between forwards and backwards. Under every other
/// schedule a training step ends, backward included, before its outputs are returned.
[[nodiscard]] bool backward_comes_first(Schedule schedule);

/// The floating 0-dim output that requires a gradient, if it is a mean or a sum over the rows: the
/// only one, or, of several, the one that all others are parts of (loss = first + 0.1 * second).
[[nodiscard]] std::optional<ir::ValueId> loss_of(const ir::Graph& graph);

/// Whether several ranks can get an output: all of it, or each its own rows. False where the size
/// depends on the rows of the batch, but no dimension is these rows: in a matrix of products of all
/// rows with all rows, no entry belongs to one rank.
[[nodiscard]] bool can_be_dealt_out(const ir::Value& output);

/// The outputs that the user gets on `ranks` ranks, ascending, each once. Throws PlanError when
/// backward comes first and the graph has no loss to start it from. Outputs that cannot be dealt
/// out are left out, unless `wanted` is all or there is no other.
[[nodiscard]] std::vector<ir::ValueId> returned_outputs(Schedule schedule, const ir::Graph& graph,
                                                        bool training, Outputs wanted, int ranks);

}  // namespace rannc::plan
