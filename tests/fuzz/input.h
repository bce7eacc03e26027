#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rannc/util/error.h"

/// What libFuzzer and replay.cpp call with the bytes of one file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace rannc::fuzz {

/// Reads `data` as a file. A ConfigError says where, so its text must not be empty; any other
/// exception ends the program, which is what a fuzzer looks for.
template <class Read>
void read(const uint8_t* data, size_t size, Read read) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const ConfigError& error) {
    if (std::string_view(error.what()).empty()) std::abort();
  }
}

/// What a reader took, written and read again, must be the same.
template <class Value, class Write, class Read>
void expect_same_again(const Value& value, Write write, Read read) {
  if (!(read(write(value)) == value)) std::abort();
}

}  // namespace rannc::fuzz
