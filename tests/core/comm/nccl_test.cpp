#include "rannc/comm/nccl.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "comm/ranks.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

TEST(Nccl, SaysWhatToDoWhereThereIsNone) {
  const auto expect_advice = [](const auto& call) {
    try {
      call();
      FAIL() << "no error";
    } catch (const CommError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("device_transport='staged'"), std::string::npos) << text;
      if (!nccl_available()) {
        EXPECT_NE(text.find("RANNC_NCCL=OFF"), std::string::npos) << text;
      }
    }
  };
  const std::string nowhere = "/nowhere/libnccl.so.2";
  expect_advice([&] { (void)find_nccl(nowhere); });
  expect_advice([&] {
    (void)make_nccl(std::move(make_local(1)[0]),
                    {.file = nowhere, .make_stream = make_host_stream, .use_device = [] {}});
  });
}

TEST(Nccl, IsNotConnectedAnewWhereItIsNot) {
  const auto comms = make_local(1);
  bool asked = false;
  reconnect_nccl(*comms[0], [&](int64_t) {
    asked = true;
    return Buffer{};
  });
  EXPECT_FALSE(asked);
}

}  // namespace
}  // namespace rannc::comm
