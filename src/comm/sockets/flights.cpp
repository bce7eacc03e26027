#include "comm/sockets/flights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <utility>

#include "comm/sockets/connect.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

/// Messages up to here are sent at once, and wait at the receiver; of larger ones only the size is,
/// and the rest when the receiver has posted it.
/// tuned by: a bound on memory: so much of each message may lie at a receiver that is late.
/// without it: a receiver that comes late takes memory for all that others have sent.
constexpr int64_t kEagerBytes = int64_t{32} << 10;
/// Of one piece of a large message: what is to be told meanwhile goes between two of them.
/// tuned by: a bound on what a question waits: 4 ms at 1 GB/s.
/// without it: a question waits until a whole message is through.
constexpr int64_t kPieceOfMessageBytes = int64_t{4} << 20;
/// Of what is read from one connection before the others have their turn.
/// tuned by: a bound on what another connection waits: 4 ms at 1 GB/s.
/// without it: one rank that sends much keeps the others waiting.
constexpr int64_t kTurnBytes = int64_t{4} << 20;

/// What stands before each piece of a connection. One program runs on all ranks, so the struct
/// itself is the wire format.
struct Header {
  enum class Kind : int64_t { eager, offer, accept, piece, control, leaving };
  Kind kind = Kind::eager;
  int64_t tag = 0;    ///< eager, offer
  int64_t bytes = 0;  ///< of the message: eager, offer; of what follows: piece
  int64_t id = 0;     ///< of the sender: offer, accept, piece
};

/// Something to be written: a header, and bytes behind it.
struct Outgoing {
  Header header;
  const char* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<Transfer> transfer = {};       ///< has landed when all is written; or null
  std::unique_ptr<ControlMessage> message = {};  ///< the memory of `data`
  int64_t written = 0;                           ///< of both together
};

/// A message that has come before its receive was posted.
struct Arrived {
  int64_t bytes = 0;
  int64_t id = -1;   ///< offered only
  std::string data;  ///< eager
};

/// A receive, and how much of it has come.
struct Incoming {
  std::shared_ptr<Transfer> transfer;
  int64_t got = 0;
};

/// What belongs to one other rank.
struct Peer {
  int reads = -1;  ///< descriptors: the same one, but for the rank itself
  int writes = -1;
  std::deque<Outgoing> outgoing;
  bool gone = false;    ///< its connection is closed
  bool silent = false;  ///< and that was because its host did not answer
  bool left = false;    ///< it has said so

  // What is being read.
  Header header;
  size_t header_got = 0;
  int64_t body_left = 0;
  char* target = nullptr;  ///< of the body; null: it is thrown away
  std::shared_ptr<Transfer> into;
  Arrived unexpected;
  ControlMessage control;

  std::map<int64_t, std::deque<Arrived>> arrived;                     // by tag
  std::map<int64_t, std::deque<std::shared_ptr<Transfer>>> receives;  // by tag
  std::map<int64_t, Incoming> accepted;                               // by id of the sender
  std::map<int64_t, std::shared_ptr<Transfer>> offered;               // by own id
};

class SocketFlights final : public Flights {
 public:
  SocketFlights(int rank, const std::vector<int>& connections, std::vector<std::string> hosts);
  ~SocketFlights() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(peers_.size()); }
  void listen() override {}
  void send_control(int to, const ControlMessage& message) override;
  void start(const std::shared_ptr<Transfer>& transfer) override;
  void leave() override;
  bool poll(Listener& listener) override;
  [[nodiscard]] bool idle() const override { return false; }
  [[nodiscard]] bool needed_by_others() const override { return true; }
  void cancel_receives() override;
  [[nodiscard]] bool hears() const override { return true; }
  void sleep() override;
  void wake() override;

 private:
  using Landed = std::vector<std::pair<std::shared_ptr<Transfer>, std::string>>;

  void send(Transfer& transfer, const std::shared_ptr<Transfer>& shared);
  void take(Peer& peer, const std::shared_ptr<Transfer>& transfer, Arrived arrived);
  void write(Peer& peer);
  bool read(int number, Listener& listener);
  void begin_body(Peer& peer);
  void end_body(int number, Listener& listener);
  void accept(Peer& peer, const std::shared_ptr<Transfer>& transfer, int64_t id);
  void close_peer(int number);
  [[nodiscard]] std::string ended(int number) const;
  [[nodiscard]] std::string wrong_size(const Transfer& transfer, int64_t bytes) const;
  [[nodiscard]] std::vector<pollfd> wanted(bool with_wake) const;

  const int rank_;
  const std::vector<std::string> hosts_;  // [rank]
  std::vector<Peer> peers_;
  int wake_ = -1;
  int64_t ids_ = 0;
  Landed landed_;              // to be told at the next poll
  std::string lost_;           // the same: why messages never come
  std::vector<char> scratch_;  // for what nobody wants
  bool left_ = false;
  bool told_ = false;     // that all have left
  int first_ended_ = -1;  // the first rank to end without a word, for which others end, too
};

SocketFlights::SocketFlights(int rank, const std::vector<int>& connections,
                             std::vector<std::string> hosts)
    : rank_(rank),
      hosts_(std::move(hosts)),
      peers_(connections.size()),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  for (size_t i = 0; i < peers_.size(); ++i) peers_[i].reads = peers_[i].writes = connections[i];
  std::array<int, 2> own{-1, -1};
  if (wake_ < 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, own.data()) != 0) {
    throw CommError(fmt::format("no connection of a rank to itself: {}", last_error()));
  }
  peers_[static_cast<size_t>(rank)].reads = own[0];
  peers_[static_cast<size_t>(rank)].writes = own[1];
}

SocketFlights::~SocketFlights() {
  for (int number = 0; number < size(); ++number) close_peer(number);
  close(wake_);
}

void SocketFlights::close_peer(int number) {
  Peer& peer = peers_[static_cast<size_t>(number)];
  if (peer.gone) return;
  peer.gone = true;
  close(peer.reads);
  if (peer.writes != peer.reads) close(peer.writes);
}

/// Why messages of rank `number`, whose connection is closed, never come.
std::string SocketFlights::ended(int number) const {
  const std::string& host = hosts_[static_cast<size_t>(number)];
  if (peers_[static_cast<size_t>(number)].silent) {
    return fmt::format("rank {} on {} does not answer: its host is dead, or the network is away",
                       number, host);
  }
  const bool first = first_ended_ < 0 || first_ended_ == number;
  return fmt::format("rank {} has ended: its connection is closed{}", first ? number : first_ended_,
                     first ? "" : fmt::format("; after it rank {}", number));
}

std::string SocketFlights::wrong_size(const Transfer& transfer, int64_t bytes) const {
  if (bytes == transfer.bytes) return {};
  return fmt::format("rank {} got {} bytes instead of the {} that it expected from rank {}", rank_,
                     bytes, transfer.bytes, transfer.peer);
}

// ---- what is asked for

void SocketFlights::send_control(int to, const ControlMessage& message) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.gone) return;  // a rank that is gone need not be told
  Outgoing out{.header = {.kind = Header::Kind::control}};
  out.message = std::make_unique<ControlMessage>(message);
  out.data = reinterpret_cast<const char*>(out.message.get());
  out.bytes = sizeof(ControlMessage);
  peer.outgoing.push_back(std::move(out));
  write(peer);
}

void SocketFlights::start(const std::shared_ptr<Transfer>& transfer) {
  Peer& peer = peers_[static_cast<size_t>(transfer->peer)];
  transfer->pieces_left = 1;
  if (transfer->sends) {
    if (peer.gone) {
      lost_ = ended(transfer->peer);
    } else {
      send(*transfer, transfer);
    }
    return;
  }
  const auto found = peer.arrived.find(transfer->tag);
  if (found != peer.arrived.end()) {
    Arrived arrived = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) peer.arrived.erase(found);
    return take(peer, transfer, std::move(arrived));
  }
  if (peer.gone) {
    lost_ = ended(transfer->peer);
    return;
  }
  peer.receives[transfer->tag].push_back(transfer);
}

void SocketFlights::send(Transfer& transfer, const std::shared_ptr<Transfer>& shared) {
  Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
  Outgoing out{.header = {.tag = transfer.tag, .bytes = transfer.bytes}};
  if (transfer.bytes <= kEagerBytes) {
    out.data = transfer.data;
    out.bytes = transfer.bytes;
    out.transfer = shared;
  } else {
    out.header.kind = Header::Kind::offer;
    out.header.id = ++ids_;
    peer.offered.emplace(out.header.id, shared);
  }
  peer.outgoing.push_back(std::move(out));
  write(peer);
}

void SocketFlights::take(Peer& peer, const std::shared_ptr<Transfer>& transfer, Arrived arrived) {
  const std::string error = wrong_size(*transfer, arrived.bytes);
  if (!error.empty() || arrived.id < 0) {
    if (error.empty()) std::ranges::copy(arrived.data, transfer->data);
    landed_.emplace_back(transfer, error);
    return;
  }
  accept(peer, transfer, arrived.id);
}

void SocketFlights::accept(Peer& peer, const std::shared_ptr<Transfer>& transfer, int64_t id) {
  peer.accepted[id].transfer = transfer;
  if (peer.gone) return;
  peer.outgoing.push_back({.header = {.kind = Header::Kind::accept, .id = id}});
  write(peer);
}

void SocketFlights::leave() {
  if (left_) return;
  left_ = true;
  for (Peer& peer : peers_) {
    if (peer.gone) continue;
    peer.outgoing.push_back({.header = {.kind = Header::Kind::leaving}});
    write(peer);
  }
}

void SocketFlights::cancel_receives() {
  for (Peer& peer : peers_) {
    for (auto& [tag, waiting] : peer.receives) {
      for (const auto& transfer : waiting) transfer->cancelled = true;
    }
    peer.receives.clear();
    for (auto& [id, incoming] : peer.accepted) {
      if (incoming.transfer) incoming.transfer->cancelled = true;
      incoming.transfer = nullptr;
    }
    if (peer.into) {
      peer.into->cancelled = true;
      peer.into = nullptr;
      peer.target = nullptr;
    }
  }
}

// ---- what moves

void SocketFlights::write(Peer& peer) {
  while (!peer.outgoing.empty() && !peer.gone) {
    Outgoing& out = peer.outgoing.front();
    const auto header_left =
        static_cast<int64_t>(sizeof(Header)) - std::min<int64_t>(out.written, sizeof(Header));
    const int64_t body_done = std::max<int64_t>(0, out.written - int64_t{sizeof(Header)});
    std::array<iovec, 2> parts{};
    int count = 0;
    if (header_left > 0) {
      char* const begin = reinterpret_cast<char*>(&out.header) + sizeof(Header) - header_left;
      parts[static_cast<size_t>(count++)] = {begin, static_cast<size_t>(header_left)};
    }
    if (out.bytes > body_done) {
      parts[static_cast<size_t>(count++)] = {const_cast<char*>(out.data) + body_done,
                                             static_cast<size_t>(out.bytes - body_done)};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t bytes = sendmsg(peer.writes, &message, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      peer.outgoing.clear();  // it is gone; read() finds that out
      return;
    }
    out.written += bytes;
    if (out.written < static_cast<int64_t>(sizeof(Header)) + out.bytes) return;
    if (out.transfer) landed_.emplace_back(std::move(out.transfer), "");
    peer.outgoing.pop_front();
  }
}

bool SocketFlights::read(int number, Listener& listener) {
  Peer& peer = peers_[static_cast<size_t>(number)];
  int64_t turn = 0;
  bool of_message = false;
  while (turn < kTurnBytes && !peer.gone) {
    char* begin = nullptr;
    int64_t wanted = 0;
    const bool heads = peer.header_got < sizeof(Header);
    if (heads) {
      begin = reinterpret_cast<char*>(&peer.header) + peer.header_got;
      wanted = static_cast<int64_t>(sizeof(Header) - peer.header_got);
    } else if (peer.target != nullptr) {
      begin = peer.target;
      wanted = peer.body_left;
    } else {
      scratch_.resize(size_t{1} << 16);
      begin = scratch_.data();
      wanted = std::min<int64_t>(peer.body_left, static_cast<int64_t>(scratch_.size()));
    }
    const ssize_t bytes = recv(peer.reads, begin, static_cast<size_t>(wanted), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (bytes <= 0) {
      peer.silent = bytes < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH);
      const bool waits = !peer.receives.empty() || !peer.accepted.empty() ||
                         !peer.offered.empty() || !peer.outgoing.empty();
      close_peer(number);
      if (!peer.left && number != rank_ && first_ended_ < 0) first_ended_ = number;
      if (waits && !peer.left) lost_ = ended(number);
      return true;
    }
    turn += bytes;
    if (heads) {
      peer.header_got += static_cast<size_t>(bytes);
      if (peer.header_got == sizeof(Header)) begin_body(peer);
    } else {
      peer.body_left -= bytes;
      of_message = of_message || peer.header.kind != Header::Kind::control;
      if (peer.target != nullptr) peer.target += bytes;
    }
    if (peer.header_got == sizeof(Header) && peer.body_left == 0) end_body(number, listener);
  }
  if (of_message) listener.message_moves();
  return turn > 0;
}

void SocketFlights::begin_body(Peer& peer) {
  const Header& header = peer.header;
  peer.body_left = 0;
  peer.target = nullptr;
  peer.into = nullptr;
  switch (header.kind) {
    case Header::Kind::eager: {
      peer.body_left = header.bytes;
      const auto waiting = peer.receives.find(header.tag);
      if (waiting != peer.receives.end() && waiting->second.front()->bytes == header.bytes) {
        peer.into = waiting->second.front();
        waiting->second.pop_front();
        if (waiting->second.empty()) peer.receives.erase(waiting);
        peer.target = peer.into->data;
      } else {
        peer.unexpected = {.bytes = header.bytes,
                           .data = std::string(static_cast<size_t>(header.bytes), '\0')};
        peer.target = peer.unexpected.data.data();
      }
      return;
    }
    case Header::Kind::piece: {
      peer.body_left = header.bytes;
      Incoming& incoming = peer.accepted[header.id];
      if (incoming.transfer) {
        peer.into = incoming.transfer;
        peer.target = incoming.transfer->data + incoming.got;
      }
      return;
    }
    case Header::Kind::control:
      peer.body_left = sizeof(ControlMessage);
      peer.target = reinterpret_cast<char*>(&peer.control);
      return;
    case Header::Kind::offer:
    case Header::Kind::accept:
    case Header::Kind::leaving:
      return;
  }
}

void SocketFlights::end_body(int number, Listener& listener) {
  Peer& peer = peers_[static_cast<size_t>(number)];
  const Header header = peer.header;
  peer.header_got = 0;
  const auto arrive = [&](Arrived arrived) {
    const auto waiting = peer.receives.find(header.tag);
    if (waiting == peer.receives.end()) {
      peer.arrived[header.tag].push_back(std::move(arrived));
      return;
    }
    const auto transfer = waiting->second.front();
    waiting->second.pop_front();
    if (waiting->second.empty()) peer.receives.erase(waiting);
    take(peer, transfer, std::move(arrived));
  };
  switch (header.kind) {
    case Header::Kind::eager:
      if (peer.into) {
        landed_.emplace_back(std::exchange(peer.into, nullptr), "");
      } else if (peer.target != nullptr || header.bytes == 0) {  // else its receive was cancelled
        arrive(std::move(peer.unexpected));
      }
      peer.unexpected = {};
      return;
    case Header::Kind::offer:
      return arrive({.bytes = header.bytes, .id = header.id, .data = {}});
    case Header::Kind::accept: {
      const auto found = peer.offered.extract(header.id);
      if (found.empty()) return;
      const std::shared_ptr<Transfer>& transfer = found.mapped();
      for (int64_t begin = 0; begin < transfer->bytes; begin += kPieceOfMessageBytes) {
        const int64_t bytes = std::min(kPieceOfMessageBytes, transfer->bytes - begin);
        Outgoing out{.header = {.kind = Header::Kind::piece, .bytes = bytes, .id = header.id},
                     .data = transfer->data + begin,
                     .bytes = bytes};
        if (begin + bytes == transfer->bytes) out.transfer = transfer;
        peer.outgoing.push_back(std::move(out));
      }
      return write(peer);
    }
    case Header::Kind::piece: {
      const auto found = peer.accepted.find(header.id);
      Incoming& incoming = found->second;
      incoming.got += header.bytes;
      peer.into = nullptr;
      if (incoming.transfer && incoming.got == incoming.transfer->bytes) {
        landed_.emplace_back(incoming.transfer, "");
        peer.accepted.erase(found);
      }
      return;
    }
    case Header::Kind::control:
      return listener.control_landed(peer.control, number);
    case Header::Kind::leaving:
      peer.left = true;
      return;
  }
}

bool SocketFlights::poll(Listener& listener) {
  bool some = false;
  std::vector<pollfd> all = wanted(false);
  if (::poll(all.data(), all.size(), 0) > 0) {
    auto next = all.cbegin();  // wanted() goes through the ranks in this order, too
    for (int number = 0; number < size(); ++number) {
      Peer& peer = peers_[static_cast<size_t>(number)];
      if (peer.gone) continue;
      const bool can_read = (next++->revents & (POLLIN | POLLHUP | POLLERR)) != 0;
      // What a rank is asked for by the one before may be there only since.
      const bool asked = next != all.cend() && next->fd == peer.writes && next->events == POLLOUT;
      if (asked && (next++->revents & POLLOUT) != 0) write(peer);
      if (can_read) some = read(number, listener) || some;
    }
  }
  for (auto& [transfer, error] : std::exchange(landed_, {})) {
    some = true;
    --transfer->pieces_left;
    listener.piece_landed(*transfer, error);
  }
  if (!lost_.empty()) listener.lost(std::exchange(lost_, {}));
  const auto done = [](const Peer& peer) {
    return peer.gone || (peer.left && peer.outgoing.empty());
  };
  if (left_ && !told_ && std::ranges::all_of(peers_, done)) {
    told_ = some = true;
    listener.all_have_left();
  }
  return some;
}

std::vector<pollfd> SocketFlights::wanted(bool with_wake) const {
  std::vector<pollfd> all;
  if (with_wake) all.push_back({.fd = wake_, .events = POLLIN, .revents = 0});
  for (const Peer& peer : peers_) {
    if (peer.gone) continue;
    all.push_back({.fd = peer.reads, .events = POLLIN, .revents = 0});
    if (!peer.outgoing.empty()) {
      all.push_back({.fd = peer.writes, .events = POLLOUT, .revents = 0});
    }
  }
  return all;
}

void SocketFlights::sleep() {
  if (!landed_.empty() || !lost_.empty()) return;
  std::vector<pollfd> all = wanted(true);
  ::poll(all.data(), all.size(), -1);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(wake_, &count, sizeof(count));
}

void SocketFlights::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t bytes = ::write(wake_, &one, sizeof(one));
}

}  // namespace

std::unique_ptr<Flights> make_socket_flights(int rank, std::vector<int> connections,
                                             std::vector<std::string> hosts) {
  return std::make_unique<SocketFlights>(rank, connections, std::move(hosts));
}

}  // namespace rannc::comm
