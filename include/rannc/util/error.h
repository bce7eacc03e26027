#pragma once

#include <stdexcept>
#include <string>

namespace rannc {

/// Base of every error that a user can cause and mend. Bugs of ours are InternalError.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file, a setting or an argument that cannot be read; names the place and what is allowed.
class ConfigError : public Error {
  using Error::Error;
};

/// The model cannot be captured soundly; names the module path and the source line.
class TraceError : public Error {
  using Error::Error;
};

/// A plan that does not fit its graph, its batch or its ranks.
class PlanError : public Error {
  using Error::Error;
};

/// No plan fits in memory; names the largest block and what to change.
class InfeasibleError : public Error {
  using Error::Error;
};

/// A peer that failed or did not answer in time; names the peer and what was waited for.
class CommError : public Error {
  using Error::Error;
};

/// A broken invariant of this library, raised by RANNC_CHECK.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}  // namespace detail

}  // namespace rannc

/// States an invariant of this library. The message says which thing broke it, with its numbers.
#define RANNC_CHECK(condition, message)                                       \
  do {                                                                        \
    if (!(condition)) {                                                       \
      ::rannc::detail::check_failed(#condition, __FILE__, __LINE__, message); \
    }                                                                         \
  } while (false)
