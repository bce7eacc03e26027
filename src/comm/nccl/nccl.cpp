#include "rannc/comm/nccl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "comm/nccl/api.h"
#include "comm/nccl/library.h"
#include "comm/nccl/watch.h"
#include "comm/timeout.h"
#include "rannc/util/error.h"
#include "rannc/util/log.h"

namespace rannc::comm {
namespace {

using nccl::Comm;
using nccl::Result;
using Clock = std::chrono::steady_clock;

/// How often a thread asks whether a call has ended, and for how long before that it asks again and
/// again: NCCL has each call of communicators that do not block done by a thread that it starts.
/// tuned by: on a host with two cores a call that such a thread ends at once takes 8 us so, and
/// 127 us with a sleep of 50 us; connecting two ranks takes seconds.
/// without it: every message takes the time of a sleep on the host, or a thread spins while ranks
/// connect.
constexpr std::chrono::microseconds kAskAgain{50};
constexpr std::chrono::microseconds kSoon{200};

/// What goes through a pair of ranks to connect it.
constexpr int64_t kProbeBytes = 8;

nccl::DataType type_of(Element element) {
  switch (element) {
    case Element::float64:
      return nccl::kFloat64;
    case Element::float32:
      return nccl::kFloat32;
    case Element::float16:
      return nccl::kFloat16;
    case Element::bfloat16:
      return nccl::kBfloat16;
    case Element::int64:
      return nccl::kInt64;
    case Element::int32:
      return nccl::kInt32;
    case Element::int8:
      return nccl::kInt8;
    case Element::uint8:
      return nccl::kUint8;
  }
  RANNC_CHECK(false, "unknown element type");
}

/// A communicator of NCCL and the stream of its operations.
struct Lane {
  int number = 0;  ///< of the stream
  Comm comm = nullptr;
  std::shared_ptr<Stream> stream;
  std::vector<int> ranks;  ///< whose places are NCCL's ranks
};

class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<nccl::Watch> watch, std::shared_ptr<Event> end, std::string what,
                double timeout_s, int rank, std::shared_ptr<void> owner)
      : watch_(std::move(watch)),
        end_(std::move(end)),
        what_(std::move(what)),
        timeout_s_(timeout_s),
        rank_(rank),
        owner_(std::move(owner)) {}

  /// Where nobody has waited for the end, its memory may still be read or written.
  ~NcclOperation() override {
    if (owner_ && !waited_) watch_->keep(std::move(end_), std::move(owner_));
  }

  [[nodiscard]] bool done() override {
    watch_->check();
    const bool ended = end_->done();
    waited_ = waited_ || ended;
    return ended;
  }
  void wait() override {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
    while (!done()) {
      if (Clock::now() > deadline) {
        watch_->fail(fmt::format("rank {} waited {:.3g} s {}", rank_, timeout_s_, what_));
      }
      std::this_thread::sleep_for(kAskAgain);
    }
  }
  [[nodiscard]] Event* on_device() override {
    watch_->check();
    waited_ = true;  // what asks for it has its device wait
    return end_->on_device();
  }

 private:
  const std::shared_ptr<nccl::Watch> watch_;
  std::shared_ptr<Event> end_;
  const std::string what_;
  const double timeout_s_;
  const int rank_;
  std::shared_ptr<void> owner_;
  std::atomic<bool> waited_ = false;
};

/// Of one rank, which has nothing to do: what it has is there when its device has made it.
class Ready final : public Operation {
 public:
  explicit Ready(std::shared_ptr<Event> ready) : ready_(std::move(ready)) {}
  [[nodiscard]] bool done() override { return !ready_ || ready_->done(); }
  void wait() override {
    if (ready_) ready_->wait();
  }
  [[nodiscard]] Event* on_device() override { return ready_ ? ready_->on_device() : nullptr; }

 private:
  const std::shared_ptr<Event> ready_;
};

class Nccl final : public Communicator {
 public:
  Nccl(std::shared_ptr<Communicator> host, NcclOptions options,
       std::shared_ptr<const nccl::Library> library)
      : host_(std::move(host)),
        options_(std::move(options)),
        library_(std::move(library)),
        watch_(std::make_shared<nccl::Watch>(
            library_, host_->rank(), [host = host_] { return host->timeout_s(); },
            options_.use_device, [host = host_](const std::string& why) { host->abort(why); })) {
    for (int rank = 0; rank < host_->size(); ++rank) all_.push_back(rank);
    if (size() > 1) start();
  }

  ~Nccl() override { end(); }

  void end() {
    watch_->end_all();
    watch_->stop();
  }

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  [[nodiscard]] double timeout_s() const override { return host_->timeout_s(); }
  void set_timeout_s(double seconds) override { host_->set_timeout_s(seconds); }
  [[nodiscard]] std::string host() const override { return host_->host(); }
  [[nodiscard]] bool is_in_order() const override { return true; }
  void abort(const std::string& reason) override { host_->abort(reason); }

  [[nodiscard]] Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
                            Then then) override {
    return host_->send(data, bytes, to, tag, purpose, std::move(then));
  }
  [[nodiscard]] Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                               Then then) override {
    return host_->receive(data, bytes, from, tag, purpose, std::move(then));
  }

  [[nodiscard]] Handle send_from(const Buffer& buffer, int to, int64_t /*tag*/,
                                 Purpose purpose) override {
    return message(/*sends=*/true, buffer, to, purpose);
  }
  [[nodiscard]] Handle receive_into(const Buffer& buffer, int from, int64_t /*tag*/,
                                    Purpose purpose) override {
    return message(/*sends=*/false, buffer, from, purpose);
  }

  [[nodiscard]] Handle start_sum(const Buffer& buffer, Element element, std::span<const int> ranks,
                                 Purpose purpose, std::shared_ptr<void> owner,
                                 std::optional<int64_t> /*tag*/) override {
    return over(Kind::sum, ranks, buffer, element, purpose, std::move(owner));
  }
  [[nodiscard]] Handle start_reduce_scatter(const Buffer& buffer, Element element,
                                            std::span<const int> ranks, Purpose purpose,
                                            std::shared_ptr<void> owner,
                                            std::optional<int64_t> /*tag*/) override {
    return over(Kind::reduce_scatter, ranks, buffer, element, purpose, std::move(owner));
  }
  [[nodiscard]] Handle start_all_gather(const Buffer& buffer, Element element,
                                        std::span<const int> ranks, Purpose purpose,
                                        std::shared_ptr<void> owner,
                                        std::optional<int64_t> /*tag*/) override {
    return over(Kind::all_gather, ranks, buffer, element, purpose, std::move(owner));
  }

  void connect(const Traffic& traffic, const Buffer& scratch) override {
    if (size() == 1) return;
    watch_->check();
    try {
      make_sums(traffic);
      connect_messages(traffic, scratch);
      connect_sums(traffic, scratch);
    } catch (const CommError& error) {
      // The others wait in NCCL for this rank.
      watch_->fail(error.what());
      throw;
    }
    remember(traffic);
  }

  void reconnect(const std::function<Buffer(int64_t bytes)>& scratch) {
    if (size() == 1) return;
    watch_->check();
    watch_->end_all();
    forward_ = backward_ = {};
    sums_.clear();
    known_sums_.clear();
    connected_.clear();
    start();
    int64_t longest = kProbeBytes;
    for (const Traffic::Sum& sum : traffic_.sums) {
      for (const int64_t bytes : sum.bytes) longest = std::max(longest, bytes);
      for (const int64_t bytes : sum.sharded) longest = std::max(longest, bytes);
    }
    connect(std::exchange(traffic_, {}), scratch(longest));
  }

 private:
  enum class Kind { sum, reduce_scatter, all_gather };

  /// The first two communicators, of all ranks.
  void start() {
    heard_ = words(nullptr);
    nccl::UniqueId id{};
    const nccl::Api& api = library_->api;
    if (rank() == 0)
      call(nullptr, "make the id of the job", [&] { return api.get_unique_id(&id); });
    const std::string bytes(id.internal, sizeof(id.internal));
    const std::string shared =
        broadcast(*host_, bytes, /*root=*/0, all_, {.what = "id of NCCL's communicators"});
    std::ranges::copy(shared, id.internal);
    nccl::OrderedConfig config = make_config();
    Comm comm = nullptr;
    const std::string what = fmt::format("start with {} ranks", size());
    const Result result = watch_->inside(
        what, [&] { return api.comm_init_rank_config(&comm, size(), id, rank(), &config.config); });
    if (comm != nullptr) watch_->add(comm);
    settle(result, comm, what, network_advice());
    forward_ = lane(comm, all_);
    backward_ = lane(split(/*color=*/0, rank(), "a communicator for gradients"), all_);
  }

  void make_sums(const Traffic& traffic) {
    for (const Traffic::Sum& sum : traffic.sums) {
      const bool known = std::ranges::find(known_sums_, sum.ranks) != known_sums_.end();
      if (known) continue;
      known_sums_.push_back(sum.ranks);
      const auto place = std::ranges::find(sum.ranks, rank());
      const bool mine = place != sum.ranks.end();
      Comm comm = split(
          mine ? 0 : nccl::kNoColor, static_cast<int>(place - sum.ranks.begin()),
          fmt::format("a communicator for sums over the ranks {}", fmt::join(sum.ranks, ", ")));
      if (mine) sums_.push_back(lane(comm, sum.ranks));
    }
  }

  /// NCCL says which one it has made when its parent is through with it, from a thread of its own:
  /// after an error perhaps late, or never, so that the place where it says so is not freed then.
  Comm split(int color, int key, const std::string& what) {
    nccl::OrderedConfig config = make_config();
    auto place = std::make_unique<std::atomic<Comm>>(nullptr);
    static_assert(sizeof(std::atomic<Comm>) == sizeof(Comm) &&
                  std::atomic<Comm>::is_always_lock_free);
    try {
      const Result result = watch_->inside("split off " + what, [&] {
        return library_->api.comm_split(forward_.comm, color, key,
                                        reinterpret_cast<Comm*>(place.get()), &config.config);
      });
      // It says that it is through when it has only begun, so its parent is asked.
      settle(result == nccl::kSuccess ? nccl::kInProgress : result, forward_.comm,
             "split off " + what, network_advice());
    } catch (const CommError&) {
      (void)place.release();  // never freed, on purpose
      throw;
    }
    Comm made = place->load();
    RANNC_CHECK((made == nullptr) == (color == nccl::kNoColor), "split off " + what);
    if (made == nullptr) return nullptr;
    watch_->add(made);
    settle(nccl::kInProgress, made, "start " + what, network_advice());
    return made;
  }

  /// What an older library would not know is not said to be there.
  [[nodiscard]] nccl::OrderedConfig make_config() const {
    nccl::OrderedConfig config;
    if (!options_.order_each) config.config = nccl::Config();
    return config;
  }

  Lane lane(Comm comm, std::vector<int> ranks) {
    if (!options_.one_stream || !only_stream_) {
      ++streams_;
      auto stream = options_.make_stream();
      if (!options_.one_stream) return {streams_, comm, std::move(stream), std::move(ranks)};
      only_stream_ = std::move(stream);
    }
    return {streams_, comm, only_stream_, std::move(ranks)};
  }

  /// Each pair once, in one order: NCCL connects at the first message.
  void connect_messages(const Traffic& traffic, const Buffer& scratch) {
    std::set<std::pair<int, int>> pairs(traffic.messages.begin(), traffic.messages.end());
    std::vector<Handle> probes;
    for (const auto& [from, to] : pairs) {
      if (from == to || !connected_.insert({from, to}).second) continue;
      for (const bool back : {false, true}) {
        const int sender = back ? to : from;
        const int receiver = back ? from : to;
        const Purpose purpose{.what = "first message", .back = back};
        const Buffer probe{scratch.data, kProbeBytes, scratch.ready};
        if (rank() == sender) probes.push_back(message(true, probe, receiver, purpose));
        if (rank() == receiver) probes.push_back(message(false, probe, sender, purpose));
      }
    }
    for (const Handle& probe : probes) probe->wait();
  }

  void connect_sums(const Traffic& traffic, const Buffer& scratch) {
    for (const Traffic::Sum& wanted : traffic.sums) {
      const auto mine = std::ranges::find(sums_, wanted.ranks, &Lane::ranks);
      if (mine == sums_.end()) continue;
      const auto first = [&](Kind kind, int64_t bytes) {
        RANNC_CHECK(bytes <= scratch.bytes, fmt::format("{} of {}", bytes, scratch.bytes));
        const Buffer part{scratch.data, bytes, scratch.ready};
        const Element element = kind == Kind::sum ? Element::float32 : Element::uint8;
        collective(kind, *mine, part, element, {.what = "first sum"}, {})->wait();
      };
      for (const int64_t bytes : wanted.bytes) first(Kind::sum, bytes);
      for (const int64_t bytes : wanted.sharded) {
        first(Kind::reduce_scatter, bytes);
        first(Kind::all_gather, bytes);
      }
    }
  }

  void remember(const Traffic& traffic) {
    traffic_.messages.insert(traffic_.messages.end(), traffic.messages.begin(),
                             traffic.messages.end());
    for (const Traffic::Sum& sum : traffic.sums) {
      const auto known = std::ranges::find(traffic_.sums, sum.ranks, &Traffic::Sum::ranks);
      if (known == traffic_.sums.end()) {
        traffic_.sums.push_back(sum);
      } else {
        known->bytes.insert(known->bytes.end(), sum.bytes.begin(), sum.bytes.end());
        known->sharded.insert(known->sharded.end(), sum.sharded.begin(), sum.sharded.end());
      }
    }
  }

  Handle message(bool sends, const Buffer& buffer, int peer, const Purpose& purpose) {
    Lane& lane = purpose.back ? backward_ : forward_;
    const Waiting waiting{sends, peer, purpose.what, purpose.stage, purpose.micro_batch};
    const auto count = static_cast<size_t>(buffer.bytes);
    return issue(lane, buffer, describe(waiting), {}, [&] {
      void* const stream = lane.stream->native();
      return sends ? library_->api.send(buffer.data, count, nccl::kUint8, peer, lane.comm, stream)
                   : library_->api.recv(buffer.data, count, nccl::kUint8, peer, lane.comm, stream);
    });
  }

  Handle over(Kind kind, std::span<const int> ranks, const Buffer& buffer, Element element,
              const Purpose& purpose, std::shared_ptr<void> owner) {
    if (ranks.size() == 1) return std::make_shared<Ready>(buffer.ready);
    const auto found = std::ranges::find_if(
        sums_, [&](const Lane& lane) { return std::ranges::equal(lane.ranks, ranks); });
    RANNC_CHECK(found != sums_.end(), fmt::format("{} over the ranks {} was not announced",
                                                  purpose.what, fmt::join(ranks, ", ")));
    return collective(kind, *found, buffer, element, purpose, std::move(owner));
  }

  Handle collective(Kind kind, Lane& lane, const Buffer& buffer, Element element,
                    const Purpose& purpose, std::shared_ptr<void> owner) {
    std::string what =
        fmt::format("for the {} over the ranks {}", purpose.what, fmt::join(lane.ranks, ", "));
    if (purpose.stage >= 0) what += fmt::format(" (stage {})", purpose.stage);
    Shard shard{0, buffer.bytes};
    if (kind != Kind::sum) shard = own_shard(*host_, buffer.bytes, element, lane.ranks);
    char* const all = static_cast<char*>(buffer.data);
    char* const mine = all + shard.begin;
    const auto count = static_cast<size_t>(shard.bytes / size_bytes(element));
    return issue(lane, buffer, std::move(what), std::move(owner), [&, type = type_of(element)] {
      const nccl::Api& api = library_->api;
      void* const stream = lane.stream->native();
      switch (kind) {
        case Kind::sum:
          return api.all_reduce(all, all, count, type, nccl::kSum, lane.comm, stream);
        case Kind::reduce_scatter:
          return api.reduce_scatter(all, mine, count, type, nccl::kSum, lane.comm, stream);
        case Kind::all_gather:
          return api.all_gather(mine, all, count, type, lane.comm, stream);
      }
      RANNC_CHECK(false, "unknown kind of collective");
    });
  }

  Handle issue(Lane& lane, const Buffer& buffer, std::string what, std::shared_ptr<void> owner,
               const std::function<Result()>& one) {
    watch_->check();
    if (buffer.ready) lane.stream->wait(*buffer.ready);
    try {
      call(lane.comm, "issue what is " + what, one);
    } catch (const CommError& error) {
      // The others wait in NCCL for it; and it may be under way, with memory that is freed now.
      watch_->fail(error.what());
      throw;
    }
    auto end = lane.stream->record();
    watch_->add(lane.number, end, what);
    return std::make_shared<NcclOperation>(watch_, std::move(end), std::move(what), timeout_s(),
                                           rank(), std::move(owner));
  }

  void call(Comm comm, const std::string& what, const std::function<Result()>& one) {
    settle(watch_->inside(what, one), comm, what);
  }

  /// Until a call has ended on the host; throws when it fails or takes too long.
  void settle(Result result, Comm comm, const std::string& what, const std::string& advice = {}) {
    const auto begin = Clock::now();
    const auto deadline = begin + std::chrono::duration<double>(timeout_s());
    std::string warning;  // NCCL keeps its last words only, so the first are listened for
    while (result == nccl::kInProgress) {
      const Result asked = watch_->inside(what, [&] {
        const Result answer = library_->api.comm_get_async_error(comm, &result);
        if (warning.empty()) warning = words(comm);
        if (warning == heard_) warning.clear();
        return answer;
      });
      if (asked != nccl::kSuccess) result = asked;
      if (result != nccl::kInProgress) break;
      const auto now = Clock::now();
      if (now > deadline) {
        throw CommError(
            fmt::format("rank {} waited {:.3g} s for NCCL to {}: a rank has not come, "
                        "or cannot be reached.{}{}",
                        rank(), timeout_s(), what, as_first(warning), advice));
      }
      if (now < begin + kSoon) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kAskAgain);
      }
    }
    if (result == nccl::kSuccess) return;
    const std::string last = words(comm);
    throw CommError(fmt::format("rank {}: NCCL {} could not {}: {}: {}{}{}", rank(),
                                nccl_version_text(library_->version), what,
                                library_->api.get_error_string(result), last,
                                as_first(warning == last ? "" : warning), advice));
  }

  /// What NCCL has warned of last.
  [[nodiscard]] std::string words(Comm comm) const {
    const char* const text = library_->api.get_last_error(comm);
    return text == nullptr ? "" : text;
  }

  [[nodiscard]] static std::string as_first(const std::string& warning) {
    return warning.empty() ? "" : "\n  NCCL's first warning: " + warning;
  }

  [[nodiscard]] std::string network_advice() const {
    return fmt::format(
        "\n  On {} {}; NCCL_SOCKET_IFNAME chooses another. NCCL_DEBUG=WARN says "
        "more.",
        host(), nccl::network_interfaces());
  }

  const std::shared_ptr<Communicator> host_;
  const NcclOptions options_;
  const std::shared_ptr<const nccl::Library> library_;
  std::vector<int> all_;
  Lane forward_;
  Lane backward_;
  std::vector<Lane> sums_;
  std::vector<std::vector<int>> known_sums_;  // of all ranks, in the order of their splits
  std::set<std::pair<int, int>> connected_;
  Traffic traffic_;    // all that was connected
  std::string heard_;  // NCCL's last words before it was started for this job
  int streams_ = 0;
  std::shared_ptr<Stream> only_stream_;
  const std::shared_ptr<nccl::Watch> watch_;  // operations keep it
};

/// The same version on every rank, or an error on every rank.
void check_versions(Communicator& host, const std::string& mine, const std::string& error) {
  std::vector<int> all(static_cast<size_t>(host.size()));
  for (int rank = 0; rank < host.size(); ++rank) all[static_cast<size_t>(rank)] = rank;
  const auto errors = all_gather(host, error, all, {.what = "errors of NCCL"});
  const auto versions = all_gather(host, mine, all, {.what = "versions of NCCL"});
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) throw CommError(fmt::format("rank {}: {}", rank, errors[rank]));
  }
  for (size_t rank = 1; rank < versions.size(); ++rank) {
    if (versions[rank] == versions[0]) continue;
    throw CommError(
        fmt::format("rank 0 has NCCL {}, and rank {} has NCCL {}: all ranks need one "
                    "version.\n  Use one environment on all hosts, or name one file "
                    "with RANNC_NCCL_LIBRARY.",
                    versions[0], rank, versions[rank]));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl(std::shared_ptr<Communicator> host, NcclOptions options) {
  std::shared_ptr<const nccl::Library> library;
  std::string error;
  try {
    library = nccl::open_library(options.file);
  } catch (const CommError& failure) {
    error = failure.what();
  }
  check_versions(*host, library ? nccl_version_text(library->version) : "", error);
  if (host->rank() == 0) {
    log::info("comm",
              fmt::format("NCCL {}, {}", nccl_version_text(library->version), library->file));
  }
  return std::make_unique<Nccl>(std::move(host), std::move(options), std::move(library));
}

void reconnect_nccl(Communicator& communicator,
                    const std::function<Buffer(int64_t bytes)>& scratch) {
  if (auto* const nccl = dynamic_cast<Nccl*>(&communicator)) nccl->reconnect(scratch);
}

void end_nccl(Communicator& communicator) {
  if (auto* const nccl = dynamic_cast<Nccl*>(&communicator)) nccl->end();
}

}  // namespace rannc::comm
