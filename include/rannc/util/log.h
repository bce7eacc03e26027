#pragma once

#include <string>
#include <string_view>

// Takes finished strings: torch ships another fmt than the system's, so no header may include it.
namespace rannc::log {

enum class Level { debug, info, warn, error, off };

/// Sets the levels from "info", or per module, "info,partition=debug,comm=warn".
/// Throws ConfigError that names the closest valid word.
void configure(std::string_view levels);

/// The number of this rank: INFO and below is shown on rank 0 only, warnings and errors on every
/// rank, with its number.
void set_rank(int rank);

[[nodiscard]] bool enabled(Level level, std::string_view module);

void write(Level level, std::string_view module, const std::string& message);

inline void debug(std::string_view module, const std::string& m) { write(Level::debug, module, m); }
inline void info(std::string_view module, const std::string& m) { write(Level::info, module, m); }
inline void warn(std::string_view module, const std::string& m) { write(Level::warn, module, m); }

}  // namespace rannc::log
