#include "rannc/comm/hosts.h"

#include <gtest/gtest.h>

namespace rannc::comm {
namespace {

TEST(Hosts, ThisOneHasANameAndIsAlwaysTheSame) {
  EXPECT_FALSE(own_host().name.empty());
  EXPECT_FALSE(own_host().identity.empty());
  EXPECT_EQ(own_host().identity, own_host().identity);
}

// Two machines from one image had one name, and counted as one host.
TEST(Hosts, WithOneNameAreNumbered) {
  const std::vector<Host> hosts{
      {"node", "a"}, {"node", "a"}, {"node", "b"}, {"other", "c"}, {"node", "b"}};
  EXPECT_EQ(distinct_names(hosts),
            (std::vector<std::string>{"node", "node", "node (2)", "other", "node (2)"}));
}

}  // namespace
}  // namespace rannc::comm
