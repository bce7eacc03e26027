#pragma once

#include <string>

#include "rannc/ir/graph.h"

namespace rannc::frontend {

/// The line of Python that runs in this thread: of the innermost frame outside `torch_path` and
/// `own_path`; when there is none, of the innermost frame outside `own_path`. Takes the GIL.
[[nodiscard]] ir::SourceLine current_line(const std::string& torch_path,
                                          const std::string& own_path);

}  // namespace rannc::frontend
