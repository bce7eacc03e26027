#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/progress/progress.h"
#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// A communicator whose messages a Progress moves. How the job ends is the backend's affair.
class ProgressCommunicator : public Communicator {
 public:
  ProgressCommunicator(std::shared_ptr<Progress> progress, std::string host, double timeout_s);

  [[nodiscard]] int rank() const override { return progress_->rank(); }
  [[nodiscard]] int size() const override { return progress_->size(); }
  [[nodiscard]] double timeout_s() const override { return timeout_s_; }
  [[nodiscard]] std::string host() const override { return host_; }
  void set_timeout_s(double seconds) override { timeout_s_ = seconds; }
  Handle send(const void* data, int64_t bytes, int to, int64_t tag, Purpose purpose,
              Then then) override;
  Handle receive(void* data, int64_t bytes, int from, int64_t tag, Purpose purpose,
                 Then then) override;
  [[nodiscard]] int64_t sent_bytes(const std::string& what) const override;

 private:
  const std::shared_ptr<Progress> progress_;
  const std::string host_;
  std::atomic<double> timeout_s_;
  mutable std::mutex sent_mutex_;  // guards sent_
  std::map<std::string, int64_t, std::less<>> sent_;
};

/// A process ends with an error: it says so where there are other ranks, and waits for none of
/// them.
void leave_with_code(const std::vector<std::shared_ptr<Progress>>& all, int code);

}  // namespace rannc::comm
