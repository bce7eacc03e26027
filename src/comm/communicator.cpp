#include "rannc/comm/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

// A collective's tag is kFirstTag + hash of its ranks and purpose * kCalls + number of the call.
constexpr int64_t kFirstTag = int64_t{1} << 30;
constexpr int64_t kHashes = int64_t{1} << 22;
// Messages with equal tags keep their order, so the numbers only have to tell apart the calls that
// run at the same time on one set of ranks.
constexpr int64_t kCalls = int64_t{1} << 8;
static_assert(kHashes * kCalls == kFirstTag, "tags stay below 2^31");

int64_t hash(std::span<const int> ranks, std::string_view what) {
  uint64_t h = 14695981039346656037U;  // FNV-1a
  for (const int rank : ranks) h = (h ^ static_cast<uint64_t>(rank)) * 1099511628211U;
  for (const char letter : what) h = (h ^ static_cast<uint8_t>(letter)) * 1099511628211U;
  return static_cast<int64_t>((h ^ (h >> 32)) % kHashes);
}

void wait_until_ready(const Buffer& buffer) {
  if (buffer.ready) buffer.ready->wait();
}

}  // namespace

int64_t size_bytes(Element element) {
  switch (element) {
    case Element::float64:
    case Element::int64:
      return 8;
    case Element::float32:
    case Element::int32:
      return 4;
    case Element::float16:
    case Element::bfloat16:
      return 2;
    case Element::int8:
    case Element::uint8:
      return 1;
  }
  RANNC_CHECK(false, "unknown element type");
}

Handle Communicator::send_from(const Buffer& buffer, int to, int64_t tag, Purpose purpose) {
  wait_until_ready(buffer);
  return send(buffer.data, buffer.bytes, to, tag, purpose);
}

Handle Communicator::receive_into(const Buffer& buffer, int from, int64_t tag, Purpose purpose) {
  wait_until_ready(buffer);
  return receive(buffer.data, buffer.bytes, from, tag, purpose);
}

Handle Communicator::start_sum(const Buffer& buffer, Element element, std::span<const int> ranks,
                               Purpose purpose, std::shared_ptr<void> owner,
                               std::optional<int64_t> tag) {
  wait_until_ready(buffer);
  return start_all_reduce_sum(*this, buffer.data, buffer.bytes / size_bytes(element), element,
                              ranks, purpose, std::move(owner), tag);
}

Handle Communicator::start_reduce_scatter(const Buffer& buffer, Element element,
                                          std::span<const int> ranks, Purpose purpose,
                                          std::shared_ptr<void> owner, std::optional<int64_t> tag) {
  wait_until_ready(buffer);
  return start_reduce_scatter_sum(*this, buffer.data, buffer.bytes / size_bytes(element), element,
                                  ranks, purpose, std::move(owner), tag);
}

Handle Communicator::start_all_gather(const Buffer& buffer, Element element,
                                      std::span<const int> ranks, Purpose purpose,
                                      std::shared_ptr<void> owner, std::optional<int64_t> tag) {
  wait_until_ready(buffer);
  return start_all_gather_shards(*this, buffer.data, buffer.bytes / size_bytes(element), element,
                                 ranks, purpose, std::move(owner), tag);
}

int64_t Communicator::next_collective_tag(std::span<const int> ranks, const Purpose& purpose) {
  const int64_t key = hash(ranks, purpose.what);
  const std::scoped_lock lock(calls_mutex_);
  Calls& calls = calls_[key];
  if (calls.count == 0) {
    calls.ranks.assign(ranks.begin(), ranks.end());
    calls.what = purpose.what;
  }
  // Two sets with one hash could take each other's messages; about one plan in 10^4 or less.
  RANNC_CHECK(
      std::ranges::equal(calls.ranks, ranks) && calls.what == purpose.what,
      fmt::format("'{}' over the ranks {} and '{}' over the ranks {} would share their tags",
                  calls.what, calls.ranks, purpose.what,
                  std::vector<int>(ranks.begin(), ranks.end())));
  return kFirstTag + key * kCalls + calls.count++ % kCalls;
}

void Communicator::leave_messages(const std::string& reason) {
  const std::scoped_lock lock(left_mutex_);
  if (left_.empty()) left_ = reason;
}

std::string Communicator::left_messages() const {
  const std::scoped_lock lock(left_mutex_);
  return left_;
}

}  // namespace rannc::comm
