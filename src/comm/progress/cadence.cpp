#include "comm/progress/cadence.h"

#include <algorithm>

namespace rannc::comm {
namespace {

using namespace std::chrono_literals;

/// How often the thread looks. A look takes up to 40 us of a computing thread on the same core of a
/// virtual machine: the timer, two switches, cold caches.
/// tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn` (kRelaxed). The others are
/// bounds: what a message that somebody waits for may be late (an eighth of the wait so far, or
/// what a look costs), what one on its way may, and 20 looks, about as long as a small message
/// travels. without it: with looks every 200 us, a pipeline of convolutions on two such cores took
/// a fifth longer than with one every 20 ms, and the GPT on four ranks 12 %.
constexpr auto kShort = 50us;  // somebody has been blocked for 400 us or less; then an eighth
constexpr auto kLong = 500us;  // of that time, up to this
constexpr auto kAttentive = 200us;
constexpr auto kRelaxed = 20ms;
constexpr auto kIdle = 100ms;
constexpr int kBurst = 20;  // looks without sleep when somebody comes to wait

}  // namespace

void Cadence::event() {
  burst_ = kBurst;
  last_event_ = Clock::now();
}

Cadence::Clock::duration Cadence::nap(Load load) {
  switch (load) {
    case Load::idle:
      return kIdle;
    case Load::relaxed:
      return kRelaxed;
    case Load::attentive:
      return kAttentive;
    case Load::blocked:
      break;
  }
  if (burst_ > 0) {
    --burst_;
    return {};
  }
  return std::clamp<Clock::duration>((Clock::now() - last_event_) / 8, kShort, kLong);
}

}  // namespace rannc::comm
