#include "rannc/runtime/executor.h"

#include "runtime/pipeline_call.h"
#include "runtime/rank_part.h"

namespace rannc::runtime {

struct Executor::Impl {
  std::shared_ptr<const RankPart> part;
  int64_t calls = 0;  ///< forwards so far: the same on all ranks
};

Executor::Executor(const ir::Graph& graph, const ops::Objects& objects, const plan::Plan& plan,
                   const std::vector<int64_t>& local_rows, std::shared_ptr<comm::Communicator> comm,
                   c10::Device device)
    : impl_(std::make_shared<Impl>()) {
  impl_->part =
      std::make_shared<RankPart>(graph, objects, plan, local_rows, std::move(comm), device);
}

Executor::~Executor() = default;

const std::vector<std::string>& Executor::parameter_names() const {
  return impl_->part->parameter_names;
}

const std::vector<std::string>& Executor::buffer_names() const { return impl_->part->buffer_names; }

const plan::Program& Executor::program(bool with_backward) const {
  return impl_->part->orders(with_backward).program;
}

std::shared_ptr<Call> Executor::forward(const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& parameters,
                                        const std::vector<at::Tensor>& buffers,
                                        bool with_backward) {
  auto call = std::make_shared<PipelineCall>(impl_->part, impl_->calls, inputs, parameters, buffers,
                                             with_backward);
  ++impl_->calls;
  call->forward();
  return call;
}

}  // namespace rannc::runtime
