#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/ir/graph.h"

namespace rannc::runtime {

/// The ranks that compute one share of a stage together: a tensor-parallel group. They run the same
/// nodes in the same order, forward and backward, so each collective has its counterparts. Where
/// messages have an order, so have a group's collectives among the communications of the Program:
/// docs/algorithms.md, "One order of communication".
class Group {
 public:
  static constexpr const char* kCollective = "tensor parallel";
  static constexpr const char* kRows = "tensor parallel arguments";

  /// `ranks`: [place].
  Group(std::shared_ptr<comm::Communicator> comm, std::shared_ptr<comm::Stream> stream,
        std::vector<int> ranks, int stage);

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int place() const { return place_; }

  // `about`: the node, or what else is exchanged, for errors.
  /// A new tensor: the sum over the places.
  [[nodiscard]] at::Tensor sum(const at::Tensor& mine, const std::string& about) const;
  /// A new tensor: the greatest of each element.
  [[nodiscard]] at::Tensor max(const at::Tensor& mine, const std::string& about) const;
  /// A new tensor: this place's part of the sum over the places. `parts`: [place], as this place
  /// has them; all places give parts of the same sizes.
  [[nodiscard]] at::Tensor sum_part(const std::vector<at::Tensor>& parts,
                                    const std::string& about) const;
  /// [place] flat, the numbers of each; `sizes`: how many they are.
  /// `what`: see comm::Purpose.
  [[nodiscard]] std::vector<at::Tensor> gather(const at::Tensor& mine,
                                               const std::vector<int64_t>& sizes,
                                               const std::string& about,
                                               const char* what = kCollective) const;

 private:
  void wait(const comm::Handle& handle, const std::string& about) const;
  /// [place] where each one's numbers stand in memory of `longest` for each of them.
  [[nodiscard]] at::Tensor row_of(const at::Tensor& all, size_t place, int64_t size) const;

  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<comm::Stream> stream_;
  std::vector<int> ranks_;
  std::vector<int> ascending_;
  int place_ = 0;
  int stage_ = 0;
};

/// How a dimension is cut: of each place begin and size of its stretches, side by side.
using Pieces = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

/// A node between others that exchanges what the ranks of a group have: see
/// include/rannc/ir/shard.h.
class GroupCollective {
 public:
  GroupCollective(const ir::Graph& graph, ir::NodeId node, std::shared_ptr<const Group> group);

  /// As ops::Operator::call().
  void call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results) const;

 private:
  enum class Kind {
    sum,
    sum_gradient,
    all_gather,
    slice,
    max,
    reduce_scatter,
    all_gather_sum_gradient
  };
  Kind kind_;
  std::string node_;
  int64_t dim_ = 0;
  std::shared_ptr<const Pieces> pieces_;
  std::shared_ptr<const Group> group_;
};

}  // namespace rannc::runtime
