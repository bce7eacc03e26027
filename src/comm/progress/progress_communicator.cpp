#include "comm/progress/progress_communicator.h"

#include <cstdio>
#include <utility>

namespace rannc::comm {

ProgressCommunicator::ProgressCommunicator(std::shared_ptr<Progress> progress, std::string host,
                                           double timeout_s)
    : progress_(std::move(progress)), host_(std::move(host)), timeout_s_(timeout_s) {}

Handle ProgressCommunicator::send(const void* data, int64_t bytes, int to, int64_t tag,
                                  Purpose purpose, Then then) {
  {
    const std::lock_guard lock(sent_mutex_);
    const auto known = sent_.find(std::string_view(purpose.what));
    (known == sent_.end() ? sent_[purpose.what] : known->second) += bytes;
  }
  return progress_->post(true, const_cast<void*>(data), bytes, to, tag, purpose, timeout_s_,
                         std::move(then));
}

Handle ProgressCommunicator::receive(void* data, int64_t bytes, int from, int64_t tag,
                                     Purpose purpose, Then then) {
  return progress_->post(false, data, bytes, from, tag, purpose, timeout_s_, std::move(then));
}

int64_t ProgressCommunicator::sent_bytes(const std::string& what) const {
  const std::lock_guard lock(sent_mutex_);
  const auto known = sent_.find(what);
  return known == sent_.end() ? 0 : known->second;
}

void leave_with_code(const std::vector<std::shared_ptr<Progress>>& all, int code) {
  if (!all.empty() && all.front()->size() > 1) {
    std::fprintf(stderr, "rannc: rank %d has left with exit code %d, which ends the job\n",
                 all.front()->rank(), code);
    std::fflush(stderr);
  }
  for (const auto& progress : all) progress->stop();
}

}  // namespace rannc::comm
