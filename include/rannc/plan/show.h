#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rannc/plan/plan.h"

// Plans as text for people, from the file alone: its predictions and its notes. A plan that
// somebody wrote by hand has neither; what is not known is left out or shown as "-". What notes
// hold in a wrong form is a ConfigError with its JSON path.
namespace rannc::plan {

/// Why there is no plan, as a sentence. Requires a plan with feasible = false.
[[nodiscard]] std::string show_reason(const Plan& plan);

/// Columns of a text that is not for a terminal, as one in the log.
constexpr size_t kPageWidth = 80;

/// The table of stages, their memory, where the time goes, and what else was looked at. `width`:
/// columns of the terminal. `global_batch`: rows, where the notes do not say it. `with_names`:
/// behind it the operators of each stage.
[[nodiscard]] std::string show(const Plan& plan, size_t width = kPageWidth,
                               std::optional<int64_t> global_batch = {}, bool with_names = false);

/// Its first line: stages, ranks, micro-batches, schedule, time; without a line end.
[[nodiscard]] std::string headline(const Plan& plan);

/// One line per group of ranks, time from left to right: forwards as the last digit of their
/// micro-batch, backwards as letters. Throws PlanError for a plan without predictions.
[[nodiscard]] std::string show_timeline(const Plan& plan, size_t width = kPageWidth);

/// Which stage holds `module` (a node, or all whose names begin with it and a dot), and what its
/// borders cost. Throws PlanError, naming the closest module, when there is none.
[[nodiscard]] std::string explain(const Plan& plan, std::string_view module,
                                  size_t width = kPageWidth);

/// The graph for Graphviz, each stage a box around its nodes; with `stage`, that one alone, and
/// beside it the values that enter and leave it.
[[nodiscard]] std::string show_dot(const Plan& plan, const ir::Graph& graph,
                                   std::optional<int> stage = {});

}  // namespace rannc::plan
