#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rannc/cost/cluster.h"
#include "rannc/cost/graph_profile.h"
#include "rannc/partition/request.h"
#include "rannc/plan/plan.h"
#include "rannc/util/error.h"

namespace rannc::rannc_plan {

/// Throws ConfigError: the file cannot be read, or is larger than `most_bytes`, which is seen
/// before more than that is held.
[[nodiscard]] std::string read_file(const std::string& path, size_t most_bytes);

/// Throws ConfigError when `path` cannot become a file, before anything is computed for it.
void check_writable(const std::string& path);

/// Writes beside `path` and renames, so that nobody ever sees a part of the text; an interruption
/// comes before or after it. Throws ConfigError.
void write_file(const std::string& path, std::string_view text);

/// What `read` returns. Its errors may begin with what the file is, `what`; the user knows it by
/// its path.
template <class Read>
auto call_by_path(const std::string& path, std::string_view what, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    std::string_view why = error.what();
    if (why.starts_with(what)) why.remove_prefix(what.size());
    throw ConfigError(path + ": " + std::string(why));
  }
}

// The planner's files. Errors are ConfigErrors that begin with the path of the file.
[[nodiscard]] cost::GraphProfile load_graph(const std::string& path);
[[nodiscard]] cost::Cluster load_cluster(const std::string& path);
[[nodiscard]] partition::Request load_request(const std::string& path);
/// `with_notes`: as plan_from_json() has it.
[[nodiscard]] plan::Plan load_plan(const std::string& path, bool with_notes = true);

}  // namespace rannc::rannc_plan
