#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/progress/flights.h"

namespace rannc::comm {

/// Over connections that do not block, [rank]; it closes them. The one to this rank itself is -1.
/// `hosts`: their names, [rank].
[[nodiscard]] std::unique_ptr<Flights> make_socket_flights(int rank, std::vector<int> connections,
                                                           std::vector<std::string> hosts);

}  // namespace rannc::comm
