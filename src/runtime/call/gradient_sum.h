#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "rannc/comm/communicator.h"
#include "rannc/plan/buckets.h"

namespace rannc::runtime {

/// The sum of gradients over ranks, of parameters that have the same ranks: bucket by bucket, each
/// as soon as this rank's part of it is complete, while the backward of others still runs. Every
/// one of the ranks makes it with the same parameters, buckets and tags.
/// Of a sharded bucket each rank gets its shard, and zeros beside it.
///
/// `.grad` becomes a view of its bucket's array when a gradient is first there, so that nothing is
/// copied at the end; a bucket of one parameter needs no array.
class GradientSum {
 public:
  /// `parameters`: `.grad` is what is summed; `stream` computes and reads it. `call`: number of
  /// what they belong to, to be compared. Buckets have the tags from `first_tag` on, and who has
  /// gradients is counted under `count_tag`, so that each may start when it likes; -1: all start in
  /// the same order on all ranks.
  /// `in_float32`: 16-bit gradients are summed so; where messages have no order, they always are.
  GradientSum(std::vector<at::Tensor> parameters, const std::vector<plan::Bucket>& buckets,
              int64_t call, comm::Communicator& comm, comm::Stream& stream, std::vector<int> ranks,
              int64_t first_tag, int64_t count_tag, bool in_float32);
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  /// A backward has added to `.grad` of this parameter.
  void added(size_t parameter);
  /// What a backward adds to from now on is complete then.
  void begin_last_backward() { last_ = true; }
  /// Everything is complete: starts what has not been started.
  void start_rest();

  /// From now on a bucket that is complete waits for issue(), and `completed` is called.
  void wait_for_issues(std::function<void()> completed) { completed_ = std::move(completed); }
  [[nodiscard]] bool is_complete(size_t bucket) const { return buckets_[bucket].complete; }
  /// Starts a bucket; where it is not complete, this rank has nothing to add.
  void issue(size_t bucket);

  /// Whether anything is under way, or was.
  [[nodiscard]] bool started() const;
  /// Until all is summed. A parameter without a gradient counts as zero, and has none afterwards if
  /// it has none on any rank. Throws CommError when ranks are at different calls.
  void wait();

 private:
  void complete(size_t parameter);
  void finish(size_t bucket);
  void place(size_t parameter);
  void keep_shard(size_t bucket);
  [[nodiscard]] at::Tensor part_of(size_t parameter) const;
  void start(size_t bucket);
  void start_counting();
  void start_counting_on_device();
  void narrow_summed();
  [[nodiscard]] bool has_gradients_of_all() const;
  void take_counts();

  struct Place {
    size_t bucket = 0;
    int64_t begin = 0;    ///< in the bucket's array
    bool placed = false;  ///< `.grad` is a view of it, or zeros are there
    bool complete = false;
  };
  struct Bucket {
    std::vector<size_t> parameters;
    size_t missing = 0;  ///< parameters that are not complete
    int64_t size = 0;    ///< numbers, with what fills up its shards
    bool sharded = false;
    at::Tensor numbers;  ///< its array
    at::Tensor wide;     ///< what is summed instead of it, in float32
    bool complete = false;
    std::shared_ptr<comm::Event> ready;  ///< when it was complete; null: the stream's now
    comm::Handle sum;
  };

  std::vector<at::Tensor> parameters_;
  std::vector<Place> places_;  ///< [parameter]
  std::vector<Bucket> buckets_;
  const int64_t call_;
  comm::Communicator& comm_;
  comm::Stream& stream_;
  const std::vector<int> ranks_;
  const int64_t first_tag_;
  const int64_t count_tag_;
  const bool in_float32_;
  bool last_ = false;
  bool rest_started_ = false;
  size_t started_ = 0;                            ///< buckets
  std::shared_ptr<std::vector<int64_t>> counts_;  ///< [parameter]: ranks that have one; then calls
  at::Tensor device_counts_;  ///< [parameter]: the same where messages have an order
  comm::Handle counting_;
  std::function<void()> completed_;
};

/// Sums `.grad` of `parameters` over `ranks`, and waits for it.
void sum_gradients(const std::vector<at::Tensor>& parameters, int64_t call,
                   comm::Communicator& comm, comm::Stream& stream, std::span<const int> ranks,
                   bool in_float32);

/// A sum of scalars under way.
struct ScalarSum {
  struct Part {
    at::Tensor flat;
    comm::Handle handle;  ///< null: there is nothing to sum
  };
  Part of_device;
  Part of_host;  ///< also of the CPU that is the device
};
/// sum_scalars() in two steps.
[[nodiscard]] ScalarSum start_scalar_sum(const std::vector<at::Tensor>& sums,
                                         comm::Communicator& comm, comm::Stream& stream,
                                         const char* what);
void finish_scalar_sum(std::vector<at::Tensor>& sums, const ScalarSum& started,
                       comm::Stream& stream);

/// Sums tensors over all ranks, as one message of float64 numbers, two for a complex one; keeps
/// shapes and dtypes. `what` names it in errors.
void sum_scalars(std::vector<at::Tensor>& sums, comm::Communicator& comm, comm::Stream& stream,
                 const char* what);

}  // namespace rannc::runtime
