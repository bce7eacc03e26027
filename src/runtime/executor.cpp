#include "rannc/runtime/executor.h"

#include <c10/util/StringUtil.h>

#include "rannc/util/error.h"
#include "runtime/orders.h"
#include "runtime/pipeline_call.h"
#include "runtime/rank_part.h"

namespace rannc::runtime {

struct Executor::Impl {
  Impl(std::shared_ptr<const RankPart> given, const plan::Plan& plan)
      : part(std::move(given)), orders(plan, part->graph, part->rank) {}

  std::shared_ptr<const RankPart> part;
  OrdersCache orders;
  int64_t calls = 0;  ///< forwards so far: the same on all ranks
};

Executor::Executor(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
                   std::shared_ptr<comm::Communicator> comm, c10::Device device)
    : impl_(std::make_shared<Impl>(
          std::make_shared<RankPart>(graph, objects, plan, std::move(comm), device), plan)) {}

Executor::~Executor() = default;

const std::vector<std::string>& Executor::parameter_names() const {
  return impl_->part->parameter_names;
}

const std::vector<std::string>& Executor::buffer_names() const { return impl_->part->buffer_names; }

std::shared_ptr<Call> Executor::forward(const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        const std::vector<at::Tensor>& buffers,
                                        const std::vector<int64_t>& local_rows,
                                        bool with_backward) {
  const int ranks = impl_->part->comm->size();
  if (static_cast<int>(local_rows.size()) != ranks) {
    throw PlanError(c10::str("local batch sizes of ", local_rows.size(), " ranks were given for ",
                             ranks, " ranks"));
  }
  auto call =
      std::make_shared<PipelineCall>(impl_->part, impl_->orders.get(local_rows, with_backward),
                                     impl_->calls, inputs, parameters, buffers, with_backward);
  ++impl_->calls;
  call->forward();
  return call;
}

}  // namespace rannc::runtime
