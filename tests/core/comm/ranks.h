#pragma once

#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "rannc/comm/local.h"

namespace rannc::comm {

/// Runs `body` on each rank of a job, in a thread of its own, and throws what the lowest rank
/// threw.
inline void on_ranks(int ranks, const std::function<void(Communicator&)>& body,
                     double timeout_s = 20) {
  const auto comms = make_local(ranks, timeout_s);
  std::vector<std::exception_ptr> errors(comms.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < comms.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          body(*comms[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline std::vector<int> all_of(const Communicator& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace rannc::comm
