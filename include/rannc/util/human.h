#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rannc {

/// "12.5 MiB", "3.0 GiB", "17 B".
[[nodiscard]] std::string human_bytes(double bytes);

/// "1.25 s", "3.4 ms", "12 us", "7 ns".
[[nodiscard]] std::string human_ns(double nanoseconds);

/// The candidate with the smallest edit distance to `word`; empty when none is within `most`.
[[nodiscard]] std::string closest(std::string_view word, const std::vector<std::string>& candidates,
                                  size_t most = SIZE_MAX);

}  // namespace rannc
