#include "rannc/util/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::log {
namespace {

const std::map<std::string, Level, std::less<>> kLevels{{"debug", Level::debug},
                                                        {"info", Level::info},
                                                        {"warn", Level::warn},
                                                        {"error", Level::error},
                                                        {"off", Level::off}};
const std::vector<std::string> kModules{"util",      "ir",      "cost",     "plan",
                                        "partition", "comm",    "frontend", "ops",
                                        "profile",   "runtime", "deploy",   "module"};

/// Guarded by its mutex; written by configure() and set_rank(), read by every thread that logs.
struct State {
  std::mutex mutex;
  Level level = Level::warn;
  std::map<std::string, Level, std::less<>> per_module;
  int rank = 0;
  std::shared_ptr<spdlog::logger> logger;
};

State& state() {
  static State instance;
  return instance;
}

template <class Names>
std::string unknown(std::string_view what, std::string_view word, const Names& names) {
  return fmt::format("unknown {} '{}' in the log levels; did you mean '{}'?", what, word,
                     closest(word, names));
}

Level parse_level(std::string_view word) {
  const auto found = kLevels.find(word);
  if (found != kLevels.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, level] : kLevels) names.push_back(name);
  throw ConfigError(unknown("level", word, names));
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

void configure(std::string_view levels) {
  Level level = Level::warn;
  std::map<std::string, Level, std::less<>> per_module;
  while (!levels.empty()) {
    const size_t comma = levels.find(',');
    const std::string_view item = levels.substr(0, comma);
    levels = comma == std::string_view::npos ? "" : levels.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      level = parse_level(item);
      continue;
    }
    const std::string module(item.substr(0, equals));
    if (std::ranges::find(kModules, module) == kModules.end()) {
      throw ConfigError(unknown("module", module, kModules));
    }
    per_module[module] = parse_level(item.substr(equals + 1));
  }
  const std::scoped_lock lock(state().mutex);
  state().level = level;
  state().per_module = std::move(per_module);
}

void set_rank(int rank) {
  const std::scoped_lock lock(state().mutex);
  state().rank = rank;
}

bool enabled(Level level, std::string_view module) {
  const std::scoped_lock lock(state().mutex);
  if (state().rank != 0 && level < Level::warn) return false;
  const auto found = state().per_module.find(module);
  return level >= (found == state().per_module.end() ? state().level : found->second);
}

void write(Level level, std::string_view module, const std::string& message) {
  if (!enabled(level, module)) return;
  const std::scoped_lock lock(state().mutex);
  if (!state().logger) {
    state().logger = std::make_shared<spdlog::logger>(
        "rannc", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    state().logger->set_level(spdlog::level::trace);
    state().logger->set_pattern("[%H:%M:%S.%e] %v");
  }
  const std::string where =
      level < Level::warn ? std::string(module) : fmt::format("{} rank {}", module, state().rank);
  state().logger->log(to_spdlog(level), "{} {}: {}",
                      spdlog::level::to_string_view(to_spdlog(level)), where, message);
  state().logger->flush();
}

}  // namespace rannc::log
