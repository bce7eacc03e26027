#pragma once

#include <atomic>
#include <csignal>

namespace rannc::rannc_plan {

/// What Ctrl-C does while this lives: it ends the program with 130 or, when an answer was asked for
/// in any case, sets a flag once, and the second one ends the program.
class Interrupts {
 public:
  explicit Interrupts(bool ends_the_program);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;

  [[nodiscard]] const std::atomic<bool>* requested() const;

 private:
  struct sigaction before_ {};
};

}  // namespace rannc::rannc_plan
