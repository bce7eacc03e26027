#include "rannc/runtime/executor.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "rannc/comm/subset.h"
#include "rannc/plan/groups.h"
#include "rannc/runtime/collective.h"
#include "rannc/util/error.h"
#include "runtime/call/check_arguments.h"
#include "runtime/call/orders.h"
#include "runtime/call/pipeline_call.h"
#include "runtime/call/rank_part.h"
#include "runtime/group/group_call.h"
#include "runtime/traffic.h"

namespace rannc::runtime {

namespace {

/// The ranks that compute this rank's shares with it; null: none.
std::shared_ptr<const Group> group_of(const std::shared_ptr<comm::Communicator>& all, int places,
                                      const std::shared_ptr<comm::Stream>& stream) {
  if (places == 1) return {};
  std::vector<int> ranks(static_cast<size_t>(places));
  std::iota(ranks.begin(), ranks.end(), all->rank() / places * places);
  return std::make_shared<Group>(all, stream, std::move(ranks), /*stage=*/-1);
}

/// The ranks of this rank's place, one of each group.
std::shared_ptr<comm::Communicator> plane_of(std::shared_ptr<comm::Communicator> all, int places) {
  if (places == 1) return all;
  if (all->size() % places != 0) {
    throw PlanError(c10::str("groups of ", places, " ranks do not divide ", all->size(), " ranks"));
  }
  std::vector<int> ranks;
  for (int rank = all->rank() % places; rank < all->size(); rank += places) ranks.push_back(rank);
  return comm::subset(std::move(all), std::move(ranks));
}

}  // namespace

struct Executor::Impl {
  /// `plan` and `comm`: of this rank's plane. `all`: of all planes.
  Impl(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
       std::shared_ptr<comm::Communicator> comm, comm::Communicator& all, c10::Device device,
       const Options& options)
      : group(options.group),
        inference(std::make_shared<RankPart>(
            graph, objects, plan,
            plan::returned_outputs(plan.schedule, graph, /*training=*/false, options.outputs,
                                   comm->size()),
            comm, device, options)),
        training(inference),
        orders(plan, inference->graph, inference->rank, options.outputs, options.bucket_bytes,
               options.holders, options.shards),
        kept(options.kept ? options.kept
                          : std::make_shared<KeptGradients>(options.stream, options.float32_sums)) {
    // Without a loss there is no training step: lowering one says why.
    const bool trains = !plan::backward_comes_first(plan.schedule) || plan::loss_of(graph);
    connect(plan, all, device, trains, options);
    if (!trains) return;
    auto outputs = plan::returned_outputs(plan.schedule, graph, /*training=*/true, options.outputs,
                                          inference->comm->size());
    if (outputs == inference->output_values) return;
    training = std::make_shared<RankPart>(graph, objects, plan, std::move(outputs), comm, device,
                                          options, inference.get());
  }

  void connect(plan::Plan plan, comm::Communicator& all, c10::Device device, bool trains,
               const Options& options) const {
    if (!all.is_in_order() || all.size() == 1) return;
    plan.bucket_bytes = options.bucket_bytes;
    const int ranks = inference->comm->size();
    comm::Traffic traffic =
        traffic_of(plan, inference->graph, ranks, inference->output_values, trains, options.outputs,
                   options.holders, options.float32_sums);
    if (group) {
      traffic = of_all_places(traffic, all.size(), group->size(), options.bucket_bytes);
    }
    runtime::connect(traffic, all, *inference->stream, device);
  }

  std::shared_ptr<const Group> group;
  std::shared_ptr<const RankPart> inference;
  std::shared_ptr<const RankPart> training;  ///< the same one if both return the same outputs
  OrdersCache orders;
  std::shared_ptr<KeptGradients> kept;
  std::shared_ptr<History> history = std::make_shared<History>();
  int64_t calls = 0;  ///< forwards so far: the same on all ranks
};

Executor::Executor(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
                   std::shared_ptr<comm::Communicator> comm, c10::Device device,
                   const Options& options) {
  const int places = plan::places(plan);
  Options own = options;
  own.group = group_of(comm, places, options.stream);
  own.holders = plan::groups_of(options.holders, places);
  impl_ = std::make_shared<Impl>(graph, objects, plan::plane_of(plan), plane_of(comm, places),
                                 *comm, device, own);
}

Executor::~Executor() = default;

const std::vector<std::string>& Executor::parameter_names() const {
  return impl_->inference->parameter_names;
}

const std::vector<std::string>& Executor::buffer_names() const {
  return impl_->inference->buffer_names;
}

const std::vector<ir::Part>& Executor::parts() const { return impl_->inference->parts; }

const Times& Executor::times() const {
  impl_->history->settle(/*wait=*/true);
  return impl_->history->times;
}

const std::vector<Span>& Executor::timeline() const {
  impl_->history->settle(/*wait=*/true);
  return impl_->history->last;
}

std::shared_ptr<Call> Executor::forward(const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        const std::vector<at::Tensor>& buffers,
                                        const std::vector<int64_t>& local_rows, bool with_backward,
                                        bool no_sync, double loss_seed) {
  const int places = impl_->group ? impl_->group->size() : 1;
  const int ranks = impl_->inference->comm->size() * places;
  if (static_cast<int>(local_rows.size()) != ranks) {
    throw PlanError(c10::str("local batch sizes of ", local_rows.size(), " ranks were given for ",
                             ranks, " ranks"));
  }
  const auto& part = with_backward ? impl_->training : impl_->inference;
  auto orders = impl_->orders.get(plan::rows_of_groups(local_rows, places), with_backward);
  GroupRows rows;
  std::vector<at::Tensor> arguments = inputs;
  if (impl_->group) {
    const auto first = local_rows.begin() + impl_->inference->rank * places;
    rows.of.assign(first, first + places);
    check_inputs(*part, rows.of[static_cast<size_t>(impl_->group->place())], inputs);
    arguments = gather_arguments(*part, *impl_->group, rows, std::move(arguments));
  }
  check_arguments(*part, orders->rows, arguments, parameters, buffers);
  auto call = std::make_shared<PipelineCall>(
      part, std::move(orders), impl_->calls,
      PipelineCall::Arguments{arguments, parameters, buffers, with_backward,
                              with_backward && no_sync, loss_seed},
      impl_->history, impl_->kept);
  ++impl_->calls;
  call->forward();
  if (!impl_->group) return call;
  return std::make_shared<GroupCall>(std::move(call), part, impl_->group, std::move(rows));
}

}  // namespace rannc::runtime
