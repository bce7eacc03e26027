#include "rannc/runtime/executor.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "rannc/runtime/collective.h"
#include "rannc/util/error.h"
#include "runtime/call/check_arguments.h"
#include "runtime/call/orders.h"
#include "runtime/call/pipeline_call.h"
#include "runtime/call/rank_part.h"
#include "runtime/traffic.h"

namespace rannc::runtime {

struct Executor::Impl {
  Impl(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
       std::shared_ptr<comm::Communicator> comm, c10::Device device, const Options& options)
      : inference(std::make_shared<RankPart>(
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
    connect(plan, device, trains, options);
    if (!trains) return;
    auto outputs = plan::returned_outputs(plan.schedule, graph, /*training=*/true, options.outputs,
                                          inference->comm->size());
    if (outputs == inference->output_values) return;
    training = std::make_shared<RankPart>(graph, objects, plan, std::move(outputs), comm, device,
                                          options, inference.get());
  }

  void connect(plan::Plan plan, c10::Device device, bool trains, const Options& options) const {
    comm::Communicator& comm = *inference->comm;
    if (!comm.is_in_order() || comm.size() == 1) return;
    plan.bucket_bytes = options.bucket_bytes;
    runtime::connect(traffic_of(plan, inference->graph, comm.size(), inference->output_values,
                                trains, options.outputs, options.holders, options.float32_sums),
                     comm, *inference->stream, device);
  }

  std::shared_ptr<const RankPart> inference;
  std::shared_ptr<const RankPart> training;  ///< the same one if both return the same outputs
  OrdersCache orders;
  std::shared_ptr<KeptGradients> kept;
  std::shared_ptr<History> history = std::make_shared<History>();
  int64_t calls = 0;  ///< forwards so far: the same on all ranks
};

Executor::Executor(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
                   std::shared_ptr<comm::Communicator> comm, c10::Device device,
                   const Options& options)
    : impl_(std::make_shared<Impl>(graph, objects, plan, std::move(comm), device, options)) {}

Executor::~Executor() = default;

const std::vector<std::string>& Executor::parameter_names() const {
  return impl_->inference->parameter_names;
}

const std::vector<std::string>& Executor::buffer_names() const {
  return impl_->inference->buffer_names;
}

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
  const int ranks = impl_->inference->comm->size();
  if (static_cast<int>(local_rows.size()) != ranks) {
    throw PlanError(c10::str("local batch sizes of ", local_rows.size(), " ranks were given for ",
                             ranks, " ranks"));
  }
  const auto& part = with_backward ? impl_->training : impl_->inference;
  auto orders = impl_->orders.get(local_rows, with_backward);
  check_arguments(*part, orders->rows, inputs, parameters, buffers);
  auto call = std::make_shared<PipelineCall>(
      part, std::move(orders), impl_->calls,
      PipelineCall::Arguments{inputs, parameters, buffers, with_backward, with_backward && no_sync,
                              loss_seed},
      impl_->history, impl_->kept);
  ++impl_->calls;
  call->forward();
  return call;
}

}  // namespace rannc::runtime
