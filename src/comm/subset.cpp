#include "rannc/comm/subset.h"

#include <algorithm>
#include <utility>

#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

class Subset final : public Communicator {
 public:
  Subset(std::shared_ptr<Communicator> all, std::vector<int> ranks)
      : all_(std::move(all)), ranks_(std::move(ranks)) {
    const auto found = std::ranges::find(ranks_, all_->rank());
    RANNC_CHECK(found != ranks_.end() && std::ranges::is_sorted(ranks_), "a subset of ranks");
    rank_ = static_cast<int>(found - ranks_.begin());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  double timeout_s() const override { return all_->timeout_s(); }
  void set_timeout_s(double seconds) override { all_->set_timeout_s(seconds); }
  std::string host() const override { return all_->host(); }

  Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
              Then then) override {
    return all_->send(data, bytes, of(to), tag, purpose, std::move(then));
  }
  Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                 Then then) override {
    return all_->receive(data, bytes, of(from), tag, purpose, std::move(then));
  }
  Handle send_from(const Buffer& buffer, int to, int64_t tag, Purpose purpose) override {
    return all_->send_from(buffer, of(to), tag, purpose);
  }
  Handle receive_into(const Buffer& buffer, int from, int64_t tag, Purpose purpose) override {
    return all_->receive_into(buffer, of(from), tag, purpose);
  }
  Handle start_sum(const Buffer& buffer, Element element, std::span<const int> ranks,
                   Purpose purpose, std::shared_ptr<void> owner,
                   std::optional<int64_t> tag) override {
    return all_->start_sum(buffer, element, of(ranks), purpose, std::move(owner), tag);
  }
  Handle start_reduce_scatter(const Buffer& buffer, Element element, std::span<const int> ranks,
                              Purpose purpose, std::shared_ptr<void> owner,
                              std::optional<int64_t> tag) override {
    return all_->start_reduce_scatter(buffer, element, of(ranks), purpose, std::move(owner), tag);
  }
  Handle start_all_gather(const Buffer& buffer, Element element, std::span<const int> ranks,
                          Purpose purpose, std::shared_ptr<void> owner,
                          std::optional<int64_t> tag) override {
    return all_->start_all_gather(buffer, element, of(ranks), purpose, std::move(owner), tag);
  }
  bool is_in_order() const override { return all_->is_in_order(); }
  int64_t sent_bytes(const std::string& what) const override { return all_->sent_bytes(what); }
  void abort(const std::string& reason) override { all_->abort(reason); }

 private:
  [[nodiscard]] int of(int rank) const { return ranks_.at(static_cast<size_t>(rank)); }
  [[nodiscard]] std::vector<int> of(std::span<const int> ranks) const {
    std::vector<int> found;
    for (const int rank : ranks) found.push_back(of(rank));
    return found;
  }

  std::shared_ptr<Communicator> all_;
  std::vector<int> ranks_;
  int rank_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> subset(std::shared_ptr<Communicator> all, std::vector<int> ranks) {
  return std::make_shared<Subset>(std::move(all), std::move(ranks));
}

}  // namespace rannc::comm
