#pragma once

#include <chrono>
#include <ostream>
#include <string>

namespace rannc::rannc_plan {

/// Whether the standard error is a terminal that people watch: not in files, and not where a
/// machine reads along (CI).
[[nodiscard]] bool stderr_is_watched();

/// When a bar says something; the same as in pyrannc/progress.py.
struct Pace {
  std::chrono::milliseconds quiet{2000};  ///< what is quicker says nothing
  std::chrono::milliseconds between_lines{10'000}, between_drawings{100};
};

/// How far something is, with the time that is left: a line that moves, or single lines.
class Bar {
 public:
  Bar(std::string what, std::ostream& err, bool moves, const Pace& pace = {});

  /// `share`: from 0 to 1.
  void at(double share);

  /// Takes the line that moves away.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  std::ostream& err_;
  bool moves_;
  Pace pace_;
  bool drawn_ = false;
  Clock::time_point begin_, last_;
};

}  // namespace rannc::rannc_plan
