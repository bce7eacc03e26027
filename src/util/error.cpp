#include "rannc/util/error.h"

#include <fmt/format.h>

namespace rannc::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError(fmt::format("{} (this is a bug of RaNNC: check '{}' failed at {}:{})",
                                  message, condition, file, line));
}

}  // namespace rannc::detail
