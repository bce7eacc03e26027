#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// A port of this host on which the other ranks of a job find this one.
class Listener {
 public:
  /// On a free port of an address of this host, as 127.0.0.1 or ::1, and of no other one. Throws
  /// CommError when there is none.
  explicit Listener(const std::string& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

/// The ranks of a job that something else has started, over a connection between every two.
/// Collective.
///
/// `addresses`: of each rank's listener, "127.0.0.1:4711" or "[::1]:4711". `hosts`: the name of
/// each rank's host. `secret`: the same on all ranks and known to nobody else; who connects without
/// it is left alone. Throws CommError naming the ranks that have not come after `start_timeout_s`.
[[nodiscard]] std::unique_ptr<Communicator> make_sockets(Listener& listener, int rank,
                                                         const std::vector<std::string>& addresses,
                                                         const std::vector<std::string>& hosts,
                                                         const std::string& secret,
                                                         double timeout_s, double start_timeout_s);

/// Leaves the jobs: waits until every rank has, and closes the connections. For the end of the
/// process, which calls it with exit code 0. Idempotent.
void finish_sockets();

}  // namespace rannc::comm
