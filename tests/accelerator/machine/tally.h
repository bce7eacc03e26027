#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace rannc::standin {

/// How often each thread of the host did something, and where.
class Tally {
 public:
  void add(const std::string& place);
  /// One line for each: `count`, a tab, the thread, a tab, the place. Threads are called by their
  /// names, the first one "main"; one without a name of its own has its number.
  [[nodiscard]] std::string lines() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, int64_t> counts_;
};

}  // namespace rannc::standin
