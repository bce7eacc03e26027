#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "rannc/ir/graph.h"

namespace rannc::runtime {

/// Logs each of `tensors`, what `values` of `graph` are: sizes, mean, least and largest entry.
/// `where` begins the line. On every rank, as each has values of its own.
void show_values(const ir::Graph& graph, const std::vector<ir::ValueId>& values,
                 const std::vector<at::Tensor>& tensors, const std::string& where);

}  // namespace rannc::runtime
