#include "input.h"
#include "rannc/cost/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rannc;
  fuzz::read(data, size, [](std::string_view text) {
    const auto read = [](std::string_view toml) {
      return cost::cluster_from_toml(toml, "cluster.toml");
    };
    const cost::Cluster cluster = read(text);
    // An [inter_host] that says nothing new is not written.
    if (cluster.hosts > 1) fuzz::expect_same_again(cluster, cost::to_toml, read);
  });
  return 0;
}
