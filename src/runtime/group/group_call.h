#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rannc/runtime/executor.h"
#include "runtime/call/rank_part.h"
#include "runtime/group/group.h"

namespace rannc::runtime {

/// Rows of each rank of a group in one call.
struct GroupRows {
  std::vector<int64_t> of;  ///< [place]
  [[nodiscard]] int64_t all() const;
  [[nodiscard]] int64_t before(int place) const;
};

/// The arguments of all ranks of a group, as one rank would have them: rows behind each other.
[[nodiscard]] std::vector<at::Tensor> gather_arguments(const RankPart& part, const Group& group,
                                                       const GroupRows& rows,
                                                       std::vector<at::Tensor> inputs);

/// A call that all ranks of a group make together, as one rank of them sees it: its rows of what
/// goes in and comes out.
class GroupCall final : public Call {
 public:
  GroupCall(std::shared_ptr<Call> whole, std::shared_ptr<const RankPart> part,
            std::shared_ptr<const Group> group, GroupRows rows);
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const override { return outputs_; }
  [[nodiscard]] std::vector<at::Tensor> backward(std::vector<at::Tensor> output_grads,
                                                 bool keep_graph, BackwardOf of) override;
  [[nodiscard]] bool communicates() const override { return whole_->communicates(); }

 private:
  [[nodiscard]] at::Tensor own_rows(const ir::Value& value, const at::Tensor& whole) const;

  std::shared_ptr<Call> whole_;
  std::shared_ptr<const RankPart> part_;
  std::shared_ptr<const Group> group_;
  GroupRows rows_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace rannc::runtime
