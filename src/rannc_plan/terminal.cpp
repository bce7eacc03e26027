#include "rannc_plan/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "rannc/plan/show.h"

namespace rannc::rannc_plan {

size_t terminal_width() {
  constexpr size_t kNarrowest = 60;
  return std::max(kNarrowest, columns_of(STDOUT_FILENO).value_or(plan::kPageWidth));
}

std::optional<size_t> columns_of(int file) {
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace rannc::rannc_plan
