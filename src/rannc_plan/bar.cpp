#include "rannc_plan/bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "rannc_plan/terminal.h"

namespace rannc::rannc_plan {

bool stderr_is_watched() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && std::getenv("CI") == nullptr &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

Bar::Bar(std::string what, std::ostream& err, bool moves, const Pace& pace)
    : what_(std::move(what)),
      err_(err),
      moves_(moves),
      pace_(pace),
      begin_(Clock::now()),
      last_(begin_) {}

void Bar::at(double share) {
  const Clock::time_point now = Clock::now();
  const auto pause = moves_ ? pace_.between_drawings : pace_.between_lines;
  if (now - begin_ < pace_.quiet || now - last_ < pause || share <= 0) return;
  last_ = now;
  const double took = std::chrono::duration<double>(now - begin_).count();
  const std::string left = fmt::format("about {:.0f} s left", took * (1 - share) / share);
  if (!moves_) {
    err_ << fmt::format("{}: {:.0f} %, {}\n", what_, 100 * share, left) << std::flush;
    return;
  }
  constexpr size_t kWidest = 80, kText = 30;  // columns of all, and around the bar
  const size_t width = std::min(kWidest, columns_of(STDERR_FILENO).value_or(kWidest));
  const size_t room = width > what_.size() + kText ? width - what_.size() - kText : 0;
  const auto full = static_cast<size_t>(share * static_cast<double>(room));
  err_ << fmt::format("\r\x1b[K{} [{}{}] {:3.0f} %, {}", what_, std::string(full, '#'),
                      std::string(room - full, '.'), 100 * share, left)
       << std::flush;
  drawn_ = true;
}

void Bar::clear() {
  if (drawn_) err_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace rannc::rannc_plan
