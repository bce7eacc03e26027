#include "rannc_plan/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "rannc/plan/show.h"

namespace rannc::rannc_plan {

size_t terminal_width() {
  constexpr size_t kNarrowest = 60;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return plan::kPageWidth;
  return std::max<size_t>(kNarrowest, size.ws_col);
}

}  // namespace rannc::rannc_plan
