#include "rannc_plan/interrupts.h"

#include <unistd.h>

namespace rannc::rannc_plan {
namespace {

// A signal handler reaches nothing but globals. Written by the handler and by the one Interrupts
// that lives, read by the search's threads.
std::atomic<bool> interrupted{false};
std::atomic<bool> ends_at_once{true};

constexpr int kInterruptedExit = 128 + SIGINT;

void on_interrupt(int) {
  if (interrupted.exchange(true) || ends_at_once) ::_exit(kInterruptedExit);
}

}  // namespace

Interrupts::Interrupts(bool ends_the_program) {
  interrupted = false;
  ends_at_once = ends_the_program;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_);
}

Interrupts::~Interrupts() { sigaction(SIGINT, &before_, nullptr); }

const std::atomic<bool>* Interrupts::requested() const { return &interrupted; }

}  // namespace rannc::rannc_plan
