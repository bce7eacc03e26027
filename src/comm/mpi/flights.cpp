#include "comm/mpi/flights.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/mpi/library.h"
#include "comm/mpi/pulls.h"
#include "rannc/util/log.h"

namespace rannc::comm {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 30;  // MPI-3 counts are int

/// Of a piece of a message to another host. A rank that waits sees each piece come, and does not
/// take a slow network for a deadlock.
/// tuned by: bounds: 0.8 s at 10 Mbit/s, of the 3 s between two looks, and 80 us at 100 Gbit/s.
/// without it: a message that takes longer than two looks ends the job.
constexpr int64_t kPieceBetweenHostsBytes = int64_t{1} << 20;

/// One request.
struct Flight {
  enum class Kind { piece, listening, control_send, leaving };
  Kind kind = Kind::piece;
  std::shared_ptr<Transfer> transfer = {};       ///< piece
  int bytes = 0;                                 ///< piece: what a receive expects
  std::unique_ptr<ControlMessage> message = {};  ///< the control kinds: the memory
};

MPI_Comm duplicate_world() {
  MPI_Comm comm = mpi().null_comm;
  check_mpi(mpi().comm_dup(mpi().world, &comm), "MPI_Comm_dup");
  check_mpi(mpi().comm_set_errhandler(comm, mpi().errors_return), "MPI_Comm_set_errhandler");
  return comm;
}

/// What is wrong with a piece that has landed on `rank`; empty: nothing.
std::string error_of(const Flight& flight, const MPI_Status& status, int rank) {
  const Transfer& transfer = *flight.transfer;
  if (status.MPI_ERROR == MPI_ERR_TRUNCATE) {
    return fmt::format("rank {} got more than the {} bytes that it expected from rank {}", rank,
                       transfer.bytes, transfer.peer);
  }
  if (status.MPI_ERROR != MPI_SUCCESS) {
    return fmt::format("the message {} rank {} failed with MPI error {}",
                       transfer.sends ? "to" : "from", transfer.peer, status.MPI_ERROR);
  }
  if (transfer.sends) return {};
  int bytes = 0;
  check_mpi(mpi().get_count(&status, mpi().byte, &bytes), "MPI_Get_count");
  if (bytes == flight.bytes) return {};
  return fmt::format("rank {} got {} bytes instead of the {} that it expected from rank {}", rank,
                     bytes, transfer.bytes, transfer.peer);
}

class MpiFlights final : public Flights {
 public:
  MpiFlights();

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void listen() override;
  void send_control(int to, const ControlMessage& message) override;
  void start(const std::shared_ptr<Transfer>& transfer) override;
  void leave() override;
  bool poll(Listener& listener) override;
  [[nodiscard]] bool idle() const override { return flights_.size() == 1; }
  [[nodiscard]] bool needed_by_others() const override;
  void cancel_receives() override;

 private:
  void fly(MPI_Request request, Flight flight);
  [[nodiscard]] std::vector<std::pair<Flight, MPI_Status>> take_landed();
  void land(Flight flight, const MPI_Status& status, Listener& listener);

  MPI_Comm messages_ = mpi().null_comm;
  MPI_Comm collectives_ = mpi().null_comm;  // of its own, so that tags of 2^30 - 1 are enough
  MPI_Comm control_ = mpi().null_comm;
  int rank_ = 0;
  int size_ = 1;
  Peers peers_;

  std::vector<MPI_Request> requests_;
  std::vector<Flight> flights_;  // parallel to requests_
  std::vector<int> landed_;      // these two: memory of take_landed()
  std::vector<MPI_Status> statuses_;
};

MpiFlights::MpiFlights()
    : messages_(duplicate_world()), collectives_(duplicate_world()), control_(duplicate_world()) {
  check_mpi(mpi().comm_rank(messages_, &rank_), "MPI_Comm_rank");
  check_mpi(mpi().comm_size(messages_, &size_), "MPI_Comm_size");
  peers_ = find_peers();
  log::debug("comm", peers_.pulling[static_cast<size_t>(rank_)]
                         ? "messages within this host do not need the sender"
                         : "messages within this host need the sender");
}

void MpiFlights::fly(MPI_Request request, Flight flight) {
  requests_.push_back(request);
  flights_.push_back(std::move(flight));
}

void MpiFlights::listen() {
  auto message = std::make_unique<ControlMessage>();
  MPI_Request request = mpi().null_request;
  check_mpi(mpi().irecv(message.get(), sizeof(ControlMessage), mpi().byte, MPI_ANY_SOURCE, 0,
                        control_, &request),
            "MPI_Irecv");
  fly(request, {.kind = Flight::Kind::listening, .message = std::move(message)});
}

std::vector<std::pair<Flight, MPI_Status>> MpiFlights::take_landed() {
  int count = 0;
  landed_.resize(requests_.size());
  statuses_.resize(requests_.size());
  const int code = mpi().testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  landed_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  std::vector<std::pair<Flight, MPI_Status>> done;
  if (count == 0 || count == MPI_UNDEFINED) return done;

  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(landed_[static_cast<size_t>(i)]);
    MPI_Status status = statuses_[static_cast<size_t>(i)];
    if (code != MPI_ERR_IN_STATUS) status.MPI_ERROR = MPI_SUCCESS;  // not set then
    done.emplace_back(std::move(flights_[at]), status);
  }
  // MPI_Testsome has set exactly these requests to null.
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == mpi().null_request) continue;
    requests_[kept] = requests_[i];
    if (kept != i) flights_[kept] = std::move(flights_[i]);
    ++kept;
  }
  requests_.resize(kept);
  flights_.resize(kept);
  return done;
}

void MpiFlights::land(Flight flight, const MPI_Status& status, Listener& listener) {
  switch (flight.kind) {
    case Flight::Kind::control_send:
      return;  // a rank that is gone need not be told
    case Flight::Kind::leaving:
      check_mpi(status.MPI_ERROR, "MPI_Ibarrier");
      return listener.all_have_left();
    case Flight::Kind::listening:
      check_mpi(status.MPI_ERROR, "MPI_Irecv");
      listen();
      return listener.control_landed(*flight.message, status.MPI_SOURCE);
    case Flight::Kind::piece:
      --flight.transfer->pieces_left;
      return listener.piece_landed(*flight.transfer, error_of(flight, status, rank_));
  }
}

void MpiFlights::send_control(int to, const ControlMessage& message) {
  auto copy = std::make_unique<ControlMessage>(message);
  MPI_Request request = mpi().null_request;
  check_mpi(mpi().isend(copy.get(), sizeof(ControlMessage), mpi().byte, to, 0, control_, &request),
            "MPI_Isend");
  fly(request, {.kind = Flight::Kind::control_send, .message = std::move(copy)});
}

void MpiFlights::start(const std::shared_ptr<Transfer>& transfer) {
  const bool collective = transfer->tag >= kFirstCollectiveTag;
  MPI_Comm comm = collective ? collectives_ : messages_;
  const int tag =
      static_cast<int>(collective ? transfer->tag - kFirstCollectiveTag : transfer->tag);
  const bool near = peers_.on_this_host[static_cast<size_t>(transfer->peer)];
  const int64_t most = near ? kPieceBytes : kPieceBetweenHostsBytes;
  transfer->pieces_left =
      static_cast<int>(std::max<int64_t>(1, (transfer->bytes + most - 1) / most));
  // Pieces have equal tags, so they arrive in this order.
  for (int64_t begin = 0; begin == 0 || begin < transfer->bytes; begin += most) {
    const int bytes = static_cast<int>(std::min(most, transfer->bytes - begin));
    char* const data = transfer->data + begin;
    MPI_Request request = mpi().null_request;
    if (transfer->sends) {
      check_mpi(mpi().isend(data, bytes, mpi().byte, transfer->peer, tag, comm, &request),
                "MPI_Isend");
    } else {
      check_mpi(mpi().irecv(data, bytes, mpi().byte, transfer->peer, tag, comm, &request),
                "MPI_Irecv");
    }
    fly(request, {.kind = Flight::Kind::piece, .transfer = transfer, .bytes = bytes});
  }
}

void MpiFlights::leave() {
  const auto is_leaving = [](const Flight& flight) { return flight.kind == Flight::Kind::leaving; };
  if (std::ranges::any_of(flights_, is_leaving)) return;
  MPI_Request request = mpi().null_request;
  check_mpi(mpi().ibarrier(control_, &request), "MPI_Ibarrier");
  fly(request, {.kind = Flight::Kind::leaving});
}

bool MpiFlights::poll(Listener& listener) {
  auto landed = take_landed();
  for (auto& [flight, status] : landed) land(std::move(flight), status, listener);
  return !landed.empty();
}

bool MpiFlights::needed_by_others() const {
  return std::ranges::any_of(flights_, [this](const Flight& flight) {
    if (flight.kind != Flight::Kind::piece) return flight.kind == Flight::Kind::leaving;
    // What comes next, as in a ring, waits for this message.
    const Transfer& transfer = *flight.transfer;
    return transfer.then != nullptr || !peers_.pulling[static_cast<size_t>(transfer.peer)];
  });
}

void MpiFlights::cancel_receives() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    const Flight& flight = flights_[i];
    if (flight.kind == Flight::Kind::piece && !flight.transfer->sends) {
      flight.transfer->cancelled = true;
      check_mpi(mpi().cancel(&requests_[i]), "MPI_Cancel");
    }
  }
}

}  // namespace

std::unique_ptr<Flights> make_mpi_flights() { return std::make_unique<MpiFlights>(); }

}  // namespace rannc::comm
