#include "comm/sockets/connect.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// What a rank says first on a connection that it has made.
struct Hello {
  std::array<char, 64> secret{};
  int32_t rank = -1;
};

/// A descriptor that is closed unless it is released.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

Hello hello_of(const std::string& secret, int rank) {
  Hello hello{.rank = rank};
  secret.copy(hello.secret.data(), hello.secret.size());
  return hello;
}

int left_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
}

/// Waits until `descriptor` is ready; false: not in time.
bool wait_for(int descriptor, short events, Clock::time_point end) {
  pollfd one{.fd = descriptor, .events = events, .revents = 0};
  int found = 0;
  do {
    found = ::poll(&one, 1, left_ms(end));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

sockaddr_in address_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    throw CommError(fmt::format("'{}' is no address of a rank, such as 127.0.0.1:4711", text));
  }
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(text.substr(colon + 1))));
  return address;
}

void make_ready(int descriptor) {
  const int one = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

/// The other one listens already: its address came from it.
int connect_to(const std::string& address, const Hello& hello, int peer, double timeout_s) {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in there = address_of(address);
  const timeval limit{.tv_sec = static_cast<time_t>(std::min(timeout_s, 1e6)), .tv_usec = 0};
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (made.get() < 0 ||
      ::connect(made.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0 ||
      ::send(made.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    throw CommError(
        fmt::format("rank {} at {} cannot be reached: {}", peer, address, last_error()));
  }
  return made.release();
}

/// The next one that connects and says who it is: its rank and descriptor.
std::pair<int, int> accept_one(const Listener& listener, const Hello& expected, int size,
                               Clock::time_point end) {
  while (wait_for(listener.descriptor(), POLLIN, end)) {
    Descriptor made(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (made.get() < 0) continue;  // it has gone again
    Hello hello;
    size_t got = 0;
    while (got < sizeof(hello) && wait_for(made.get(), POLLIN, end)) {
      const ssize_t bytes =
          recv(made.get(), reinterpret_cast<char*>(&hello) + got, sizeof(hello) - got, 0);
      if (bytes <= 0) break;
      got += static_cast<size_t>(bytes);
    }
    if (got == sizeof(hello) && hello.secret == expected.secret && hello.rank > expected.rank &&
        hello.rank < size) {
      return {hello.rank, made.release()};
    }
  }
  return {-1, -1};
}

}  // namespace

std::string last_error() { return std::strerror(errno); }

Listener::Listener() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (descriptor_ < 0 || bind(descriptor_, plain, length) != 0 ||
      ::listen(descriptor_, SOMAXCONN) != 0 || getsockname(descriptor_, plain, &length) != 0) {
    throw CommError(fmt::format("no port to listen on: {}", last_error()));
  }
  port_ = ntohs(address.sin_port);
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::vector<int> connect_all(const Listener& listener, int rank,
                             const std::vector<std::string>& addresses, const std::string& secret,
                             double timeout_s) {
  const int size = static_cast<int>(addresses.size());
  const Hello own = hello_of(secret, rank);
  const auto end = Clock::now() +
                   std::chrono::milliseconds(static_cast<int64_t>(std::min(timeout_s, 1e6) * 1000));
  std::vector<int> found(addresses.size(), -1);
  try {
    for (int peer = 0; peer < rank; ++peer) {
      found[static_cast<size_t>(peer)] =
          connect_to(addresses[static_cast<size_t>(peer)], own, peer, timeout_s);
    }
    for (int missing = size - rank - 1; missing > 0;) {
      const auto [peer, descriptor] = accept_one(listener, own, size, end);
      if (peer < 0) {
        std::string text;
        for (int other = rank + 1; other < size; ++other) {
          if (found[static_cast<size_t>(other)] < 0) text += fmt::format(" {}", other);
        }
        throw CommError(fmt::format("rank {} waited {:.3g} s for the connection of the ranks{}",
                                    rank, timeout_s, text));
      }
      int& place = found[static_cast<size_t>(peer)];
      if (place < 0) {
        --missing;
      } else {
        close(place);
      }
      place = descriptor;
    }
  } catch (const CommError&) {
    for (const int descriptor : found) {
      if (descriptor >= 0) close(descriptor);
    }
    throw;
  }
  for (const int descriptor : found) {
    if (descriptor >= 0) make_ready(descriptor);
  }
  return found;
}

}  // namespace rannc::comm
