#include "input.h"
#include "rannc/plan/plan.h"
#include "rannc/plan/show.h"

/// A plan that can be read can be shown; where its notes or numbers do not go together, that is
/// said.
template <class Show>
void show(Show show) {
  try {
    (void)show();
  } catch (const rannc::Error& error) {
    if (std::string_view(error.what()).empty()) std::abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rannc;
  fuzz::read(data, size, [](std::string_view text) {
    const auto read = [](std::string_view json) { return plan::plan_from_json(json); };
    const plan::Plan plan = read(text);
    const auto write = [](const plan::Plan& value) { return plan::to_json(value); };
    fuzz::expect_same_again(plan, write, read);
    show([&] { return plan::show(plan); });
    if (plan.micro_batches < 1000) show([&] { return plan::show_timeline(plan); });
    show([&] { return plan::explain(plan, "blocks.3"); });
  });
  return 0;
}
