#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "partition/blocks/block_model.h"
#include "partition/problem/draft.h"
#include "partition/problem/search_report.h"
#include "partition/problem/stage_account.h"
#include "partition/score/pipeline_clock.h"
#include "partition/score/transfer_times.h"
#include "rannc/cost/cluster.h"
#include "rannc/partition/planner.h"
#include "rannc/partition/request.h"

namespace rannc::partition {

struct Assessment {
  bool fits = false;
  double iteration_ns = std::numeric_limits<double>::infinity();
  double peak_bytes = 0;        ///< of the fullest rank
  std::vector<double> load_ns;  ///< [stage] forward + backward of a micro-batch
};

/// Time and memory of drafts by sections 5 to 7 of docs/planner-files.md. Written for the search:
/// shares nothing with partition::evaluate, which has the last word on the winner. Remembers the
/// links of places; not for several threads.
class Assessor {
 public:
  Assessor(const BlockModel& model, const cost::Cluster& cluster, const Request& request);

  [[nodiscard]] const BlockModel& model() const { return model_; }
  [[nodiscard]] const cost::Cluster& cluster() const { return cluster_; }
  [[nodiscard]] const Request& request() const { return request_; }
  [[nodiscard]] int64_t examined() const { return examined_; }

  /// Chooses what to recompute: where the request leaves it open, only what memory demands, because
  /// recompute never makes a stage faster. Of an interleaved group, the stage that saves most bytes
  /// per time goes first.
  void choose_recompute(Draft& draft);

  /// The draft as it is. When it does not fit, or its bound passes `give_up_ns`, the time is
  /// infinite. O(blocks + values + stages * micro-batches).
  [[nodiscard]] Assessment assess(const Draft& draft,
                                  double give_up_ns = std::numeric_limits<double>::infinity());
  [[nodiscard]] double peak_bytes(const Draft& draft);
  [[nodiscard]] TimeParts parts(const Draft& draft);

 private:
  struct Stage {
    double rows = 0;
    double forward_ns = 0, gradient_ns = 0, saved_bytes = 0, workspace_bytes = 0;
    double own_gradient_bytes = 0;  ///< of parameters that no other stage uses
    BlockModel::State state;
    cost::Size in, out, graph_in;
    cost::Size in_gradients, out_gradients;
    Moments::Stage held;  ///< by version 2
  };
  struct Tied {
    std::vector<int> stages;
    double gradient_bytes = 0;
  };
  struct Crossing {
    int from = 0, to = 0;
    cost::Size forward, backward;
    bool has_backward = false;
  };
  /// What a draft's stages hold and exchange.
  struct Sheet {
    std::vector<Stage> stages;
    std::vector<Tied> tied;
    std::vector<Crossing> crossings;
    double micro_rows = 0;
  };

  void fill(const Draft& draft);
  void add_host_times(const Draft& draft, const std::vector<const BlockCosts::AtRows*>& costs);
  void fill_shared(const Draft& draft);
  void fill_values(const Draft& draft);
  // By section 6, of the stage of a schedule that is not interleaved, and of an interleaved group.
  double stage_peak(const Draft& draft, int stage, bool recompute) const;
  StageAccount account(const Draft& draft, size_t stage) const;
  /// The largest along the order of an interleaved group, by section 7.
  double group_moment(const Draft& draft, size_t group, const std::vector<bool>& recompute) const;
  double group_peak(const Draft& draft, size_t group, const std::vector<bool>& recompute) const;
  BlockModel::State group_state(const Draft& draft, size_t group) const;
  /// What a stage holds for each micro-batch in flight.
  double held_bytes(size_t stage, bool recompute) const;
  /// To compare with `available_bytes_`.
  double need(const Draft& draft, size_t group, const std::vector<bool>& recompute) const;
  Pipeline pipeline(const Draft& draft, bool with_transfers);
  double reductions(const Draft& draft, const std::vector<double>& last_backward);
  double ring_ns(const std::vector<int>& hosts, size_t ranks, double bytes) const;

  const BlockModel& model_;
  const cost::Cluster& cluster_;
  const Request& request_;
  double available_bytes_;
  Placements placements_;
  Sheet sheet_;
  std::vector<int> groups_on_host_;
  std::vector<int> crossing_of_;  // [from * stages + to]
  std::vector<int> marks_;
  int64_t examined_ = 0;
};

}  // namespace rannc::partition
