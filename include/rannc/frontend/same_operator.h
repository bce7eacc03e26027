#pragma once

#include <string>

namespace rannc::frontend {

/// The operator of torch's own that computes the same as `op`, which a library registers for cases
/// that torch's does not take; empty for all others. See ir::Node::like.
[[nodiscard]] std::string same_operator(const std::string& op);

}  // namespace rannc::frontend
