#include "input.h"
#include "rannc/cost/graph_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rannc;
  fuzz::read(data, size, [](std::string_view text) {
    const auto write = [](const cost::GraphProfile& profile) { return cost::to_json(profile); };
    fuzz::expect_same_again(cost::graph_profile_from_json(text), write,
                            cost::graph_profile_from_json);
  });
  return 0;
}
