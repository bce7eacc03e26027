#include "input.h"
#include "rannc/partition/request.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rannc;
  fuzz::read(data, size, [](std::string_view text) {
    const auto write = [](const partition::Request& request) {
      return partition::to_json(request);
    };
    fuzz::expect_same_again(partition::request_from_json(text), write,
                            partition::request_from_json);
  });
  return 0;
}
