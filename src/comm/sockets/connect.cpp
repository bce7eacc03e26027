#include "comm/sockets/connect.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
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
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// How long a connection may take to say who it is.
/// tuned by: a deadline, far beyond what a greeting of 68 bytes takes to any host.
/// without it: connections that say nothing, as of a port scanner, are kept until the start's own.
constexpr auto kGreetingTime = 2s;

/// How many connections that have said nothing are kept, and for how long when there are so many.
/// tuned by: a bound: far fewer than the 1,024 files that a process may open by default, and 1,000
/// connections have gone within half a second.
/// without it: a process without another file to open, which ranks wait for in vain.
constexpr size_t kGuests = 256;
constexpr auto kGreetingTimeInACrowd = 100ms;

/// When a host that has gone without a word counts as dead: after so many seconds without an
/// answer, to a message or to the probes that are sent when nothing has come for a while.
/// tuned by: deadlines: an outage of 8 s does not end a job, and a host's death does within 30 s.
/// without it: the other ranks wait for comm_timeout_s.
constexpr int kSilenceS = 20;
constexpr int kProbeAfterS = 5;
constexpr int kProbeEveryS = 3;

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

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Of an address in numbers, as 127.0.0.1 or ::1.
Addresses parsed(const std::string& address, const std::string& port) {
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), port.c_str(), &wanted, &found) != 0) return nullptr;
  return Addresses(found);
}

Addresses address_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  Addresses found;
  if (colon != std::string::npos) {
    std::string address = text.substr(0, colon);
    if (address.starts_with('[') && address.ends_with(']')) {
      address = address.substr(1, address.size() - 2);
    }
    found = parsed(address, text.substr(colon + 1));
  }
  if (!found) {
    throw CommError(
        fmt::format("'{}' is no address of a rank, such as 127.0.0.1:4711 or [::1]:4711", text));
  }
  return found;
}

void set(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof(value));
}

void make_ready(int descriptor) {
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, (kSilenceS - kProbeAfterS) / kProbeEveryS);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceS * 1000);
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

/// The other one listens already: its address came from it.
int connect_to(const std::string& address, const Hello& hello, int peer, double timeout_s) {
  const Addresses there = address_of(address);
  Descriptor made(socket(there->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = static_cast<time_t>(std::min(timeout_s, 1e6)), .tv_usec = 0};
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (made.get() < 0 || ::connect(made.get(), there->ai_addr, there->ai_addrlen) != 0 ||
      ::send(made.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    throw CommError(
        fmt::format("rank {} at {} cannot be reached: {}", peer, address, last_error()));
  }
  return made.release();
}

/// Takes the same time whatever the secret is, so that nobody guesses it byte by byte.
bool is_equal(const Hello& said, const Hello& expected) {
  unsigned difference = 0;
  for (size_t i = 0; i < said.secret.size(); ++i) {
    difference |= static_cast<unsigned>(said.secret[i] ^ expected.secret[i]);
  }
  return difference == 0;
}

/// A connection that has not yet said who it is.
struct Guest {
  explicit Guest(int descriptor) : connection(descriptor) {}

  Descriptor connection;
  Clock::time_point start = Clock::now();
  Hello hello;
  size_t got = 0;
};

/// Ranks that connect, among others who do: all are heard at the same time.
class Reception {
 public:
  Reception(const Listener& listener, const Hello& own, int size)
      : listener_(listener), own_(own), size_(size) {
    fcntl(listener.descriptor(), F_SETFL, fcntl(listener.descriptor(), F_GETFL) | O_NONBLOCK);
  }

  /// The rank and the descriptor of the next one, or -1 at the end of the time.
  std::pair<int, int> next(Clock::time_point end) {
    while (Clock::now() < end) {
      for (const int ready : wait(end)) {
        const auto guest = std::ranges::find_if(
            guests_, [&](const Guest& each) { return each.connection.get() == ready; });
        if (guest == guests_.end()) {
          welcome();
        } else if (const std::optional<int> rank = hear(*guest)) {
          const int descriptor = *rank >= 0 ? guest->connection.release() : -1;
          guests_.erase(guest);
          if (*rank >= 0) return {*rank, descriptor};
        }
      }
      const auto now = Clock::now();
      guests_.remove_if([&](const Guest& guest) { return guest.start + patience() <= now; });
    }
    return {-1, -1};
  }

 private:
  [[nodiscard]] bool is_full() const { return guests_.size() >= kGuests; }
  [[nodiscard]] Clock::duration patience() const {
    return is_full() ? Clock::duration(kGreetingTimeInACrowd) : Clock::duration(kGreetingTime);
  }

  /// Descriptors that have something to say, the listener's among them where there is room.
  std::vector<int> wait(Clock::time_point end) {
    std::vector<pollfd> all;
    if (!is_full()) all.push_back({.fd = listener_.descriptor(), .events = POLLIN, .revents = 0});
    for (const Guest& guest : guests_) {
      all.push_back({.fd = guest.connection.get(), .events = POLLIN, .revents = 0});
      end = std::min(end, guest.start + patience());
    }
    std::vector<int> ready;
    if (::poll(all.data(), all.size(), left_ms(end) + 1) > 0) {
      for (const pollfd& each : all) {
        if (each.revents != 0) ready.push_back(each.fd);
      }
    }
    return ready;
  }

  void welcome() {
    while (!is_full()) {
      const int made =
          accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (made < 0) return;  // there are no more, or one has gone again
      guests_.emplace_back(made);
    }
  }

  /// The rank that a guest turns out to be, or -1 for none of the job; nothing as long as it has
  /// not said enough.
  [[nodiscard]] std::optional<int> hear(Guest& guest) const {
    const ssize_t bytes =
        recv(guest.connection.get(), reinterpret_cast<char*>(&guest.hello) + guest.got,
             sizeof(Hello) - guest.got, 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    if (bytes <= 0) return -1;
    guest.got += static_cast<size_t>(bytes);
    if (guest.got < sizeof(Hello)) return std::nullopt;
    const int rank = guest.hello.rank;
    return is_equal(guest.hello, own_) && rank > own_.rank && rank < size_ ? rank : -1;
  }

  const Listener& listener_;
  const Hello& own_;
  const int size_;
  std::list<Guest> guests_;
};

}  // namespace

std::string last_error() { return std::strerror(errno); }

Listener::Listener(const std::string& address) {
  const Addresses own = parsed(address, "0");
  if (!own) throw CommError(fmt::format("'{}' is no address of this host in numbers", address));
  descriptor_ = socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (descriptor_ < 0 || bind(descriptor_, own->ai_addr, own->ai_addrlen) != 0 ||
      ::listen(descriptor_, SOMAXCONN) != 0 ||
      getsockname(descriptor_, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw CommError(fmt::format("no port to listen on at {}: {}", address, last_error()));
  }
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
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
    Reception reception(listener, own, size);
    for (int missing = size - rank - 1; missing > 0;) {
      const auto [peer, descriptor] = reception.next(end);
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
