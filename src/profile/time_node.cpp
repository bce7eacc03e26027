#include "profile/time_node.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "rannc/ops/add_up_gradients.h"
#include "rannc/ops/memory.h"
#include "rannc/ops/operator.h"

namespace rannc::profile {
namespace {

using torch::autograd::variable_list;

/// An operator that takes longer is called twice only: the second time because the first call's
/// memory may come from the system, page by page.
/// tuned by: a bound on the time of profiling.
/// without it: profiling a model of long operators takes as many times longer as calls are
/// repeated.
constexpr int64_t kLongCall_ns = 200'000'000;

/// Bytes that operands on an accelerator go round in, where it does not say how large its cache is.
/// tuned by: the second-level caches of data-centre GPUs, 40 to 96 MiB.
/// without it: operators find in the cache what they will not find there in a step.
constexpr int64_t kRotatedBytes = int64_t{128} << 20;

struct Sample {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
};

/// Times of one node's calls.
struct Samples {
  std::vector<int64_t> forward_ns, backward_ns;
  std::vector<int64_t> forward_host_ns, backward_host_ns;  ///< of an accelerator's
  /// Of those calls for which an accelerator waited; used where it waited for all.
  std::vector<int64_t> forward_with_wait_ns, backward_with_wait_ns;
};

/// Other processes make calls slower, by what they leave in the caches, and never faster: the lower
/// quartile is nearer to what an undisturbed call takes than the median. Measurements whose median
/// is so many times the shortest are repeated, in so many rounds.
/// tuned by: a safety margin above what rounds differ by on a quiet host; the rounds are a bound on
/// the time of profiling.
/// without it: on a busy host, costs are those of disturbed calls, and the plan differs from start
/// to start.
constexpr double kSpread = 1.15;
constexpr int kTimingRounds = 4;

int64_t quantile(std::vector<int64_t> values, size_t quarters) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() * quarters / 4);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

int64_t typical(const std::vector<int64_t>& values) { return quantile(values, 1); }

/// Of the first that has any; else `otherwise`.
int64_t typical_of(std::initializer_list<const std::vector<int64_t>*> all, int64_t otherwise) {
  for (const auto* values : all) {
    if (!values->empty()) return typical(*values);
  }
  return otherwise;
}

bool is_disturbed(const std::vector<int64_t>& values) {
  return values.empty() || static_cast<double>(quantile(values, 2)) >
                               kSpread * static_cast<double>(*std::ranges::min_element(values));
}

variable_list gradients_of(const variable_list& outputs, const variable_list& wanted,
                           const variable_list& gradients) {
  return torch::autograd::grad(outputs, wanted, gradients, /*retain_graph=*/false,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

class Timer {
 public:
  Timer(const ir::Graph& graph, ir::NodeId node, const ops::Objects& objects,
        std::vector<at::Tensor> leaves, int64_t rows, Bench& bench)
      : node_(graph[node]),
        operator_(graph, node, objects, bench.device),
        leaves_(std::move(leaves)),
        bench_(bench) {
    operator_.set_rows(rows);
    for (ir::ValueId operand : graph.operands(node)) {
      written_.push_back(std::ranges::find(node_.writes, operand) != node_.writes.end());
      fresh_.push_back(graph[operand].kind == ir::ValueKind::result);
    }
    const std::vector<ir::ValueId> operands = graph.operands(node);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (graph[operands[i]].kind == ir::ValueKind::parameter) weights_.push_back(leaves_[i]);
    }
    if (operands.size() > 1 && graph[operands[1]].kind == ir::ValueKind::parameter &&
        leaves_[1].requires_grad()) {
      weight_bytes_ = static_cast<int64_t>(leaves_[1].nbytes());
    }
    wanted_ = wanted_of(leaves_);
  }

  /// One forward and, where a gradient flows, one backward. `workspace_bytes`: null to count none.
  Sample run(int64_t* workspace_bytes) {
    const c10::AutoGradMode grad_mode(node_.grad_enabled);
    std::vector<at::Tensor> operands = leaves_;
    // Writing to a leaf that requires a gradient is an error, and every call starts from the same
    // data: writes go to copies.
    for (size_t i = 0; i < operands.size(); ++i) {
      if (written_[i]) operands[i] = operands[i].clone();
    }
    bench_.cache.evict(weights_);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (fresh_[i]) Cache::touch(operands[i]);
    }
    Sample sample;
    std::vector<at::Tensor> results;
    sample.forward_ns =
        timed(workspace_bytes, std::nullopt, [&] { operator_.call(operands, results); });
    operands.clear();
    backward(results, workspace_bytes, sample);
    return sample;
  }

  /// `calls` calls without waits in between, by the two clocks of the bench's train. The device is
  /// kept busy for `busy_ns` for each of them. Returns whether that was enough.
  bool run_train(int calls, int64_t busy_ns, Samples& samples) {
    const c10::AutoGradMode grad_mode(node_.grad_enabled);
    Train& train = *bench_.train;
    if (copies_.empty()) make_copies(calls);
    bool flows = false;  // a gradient
    train.keep_busy(busy_ns * calls);
    for (int call = 0; call < calls; ++call) {
      const variable_list& leaves = copies_[next_copy_++ % copies_.size()];
      std::vector<at::Tensor> operands = leaves;
      for (size_t i = 0; i < operands.size(); ++i) {
        if (written_[i]) operands[i] = operands[i].clone();
      }
      std::vector<at::Tensor> results;
      train.time([&] { operator_.call(operands, results); });
      variable_list outputs, gradients;
      for (const at::Tensor& result : results) {
        if (!result.defined() || !result.requires_grad()) continue;
        outputs.push_back(result);
        gradients.push_back(at::ones_like(result));
      }
      const variable_list wanted = wanted_of(leaves);
      variable_list found;
      flows = !outputs.empty() && !wanted.empty();
      train.time([&] {
        if (flows) found = gradients_of(outputs, wanted, gradients);
      });
    }
    const Train::Times times = train.end();
    bool enough = true;
    for (size_t i = 0; i + 1 < times.device_ns.size(); i += 2) {
      auto& forward = times.waited[i] ? samples.forward_with_wait_ns : samples.forward_ns;
      forward.push_back(times.device_ns[i]);
      samples.forward_host_ns.push_back(times.host_ns[i]);
      const int64_t host = std::max<int64_t>(times.host_ns[i + 1] - bench_.engine_ns, 1);
      const bool waited = flows && times.waited[i + 1];
      auto& backward = waited ? samples.backward_with_wait_ns : samples.backward_ns;
      backward.push_back(flows ? times.device_ns[i + 1] : 0);
      samples.backward_host_ns.push_back(flows ? host : 0);
      enough = enough && !times.waited[i] && !waited;
    }
    return enough;
  }

 private:
  static variable_list wanted_of(const variable_list& leaves) {
    variable_list wanted;
    for (const at::Tensor& leaf : leaves) {
      const bool repeated =
          std::ranges::any_of(wanted, [&](const at::Tensor& other) { return other.is_same(leaf); });
      if (leaf.requires_grad() && !repeated) wanted.push_back(leaf);
    }
    return wanted;
  }

  /// Other operands with equal numbers, so that calls find none of theirs in the device's cache:
  /// there are others for each call until they are more than it holds, and what keeps the device
  /// busy before the first of `calls` fills it.
  void make_copies(int calls) {
    copies_.push_back(leaves_);
    int64_t bytes = 1;
    for (const at::Tensor& leaf : leaves_) bytes += static_cast<int64_t>(leaf.nbytes());
    const int64_t count = std::min<int64_t>((bench_.rotated_bytes + bytes - 1) / bytes, calls);
    const c10::AutoGradMode no_grad(false);
    for (int64_t copy = 1; copy < count; ++copy) {
      variable_list copies;
      for (size_t i = 0; i < leaves_.size(); ++i) {
        const auto same = std::ranges::find_if(
            leaves_, [&](const at::Tensor& other) { return other.is_same(leaves_[i]); });
        const auto first = static_cast<size_t>(same - leaves_.begin());
        copies.push_back(first < i ? copies[first] : leaves_[i].clone());
        copies.back().requires_grad_(leaves_[i].requires_grad());
      }
      copies_.push_back(std::move(copies));
    }
  }

  void backward(const std::vector<at::Tensor>& results, int64_t* workspace_bytes, Sample& sample) {
    variable_list outputs, gradients;
    int64_t incoming = 0;
    for (const at::Tensor& result : results) {
      if (!result.defined() || !result.requires_grad()) continue;
      outputs.push_back(result);
      gradients.push_back(at::ones_like(result));
      if (result.is_cpu() == bench_.device.is_cpu()) {
        incoming += static_cast<int64_t>(gradients.back().nbytes());
      }
    }
    if (outputs.empty() || wanted_.empty()) return;
    bench_.cache.evict(weights_);
    for (const at::Tensor& gradient : gradients) Cache::touch(gradient);
    const bool adds = ops::adds_weight_gradients(outputs[0].grad_fn().get());
    variable_list found;  // kept, as the gradients that go out count
    const int64_t ns = timed(workspace_bytes, incoming - (adds ? weight_bytes_ : 0),
                             [&] { found = gradients_of(outputs, wanted_, gradients); });
    sample.backward_ns = std::max<int64_t>(ns - bench_.engine_ns, 1);
  }

  /// The forward's results remain allocated and are no temporaries; of the backward everything is.
  /// `more_bytes`: of a backward, that it needs beside what it allocates.
  template <class Call>
  int64_t timed(int64_t* workspace_bytes, std::optional<int64_t> more_bytes, Call call) {
    if (workspace_bytes == nullptr) return bench_.stopwatch.time_ns(call);
    const ops::MemoryRecorder counter(bench_.device);
    const int64_t ns = bench_.stopwatch.time_ns(call);
    const int64_t kept = more_bytes ? 0 : std::max<int64_t>(counter.current_bytes(), 0);
    const int64_t peak = std::max<int64_t>(counter.peak_bytes() - kept, 0) + more_bytes.value_or(0);
    *workspace_bytes = std::max(*workspace_bytes, peak);
    return ns;
  }

  const ir::Node& node_;
  ops::Operator operator_;
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> weights_;
  std::vector<bool> written_;          // [operand]
  std::vector<bool> fresh_;            // [operand] another operator has just written it
  int64_t weight_bytes_ = 0;           // of a trained parameter that is operand 1
  variable_list wanted_;               // leaves that require a gradient, each once
  std::vector<variable_list> copies_;  // of the leaves, for an accelerator
  size_t next_copy_ = 0;
  Bench& bench_;
};

/// What autograd takes for the backward of an operator that has nothing to do. A stage's backward
/// is one call for all its operators.
int64_t time_engine(const Stopwatch& stopwatch, std::optional<Train>& train, c10::Device device) {
  /// Calls of an empty backward of which the lower quartile is what autograd takes for a call of
  /// its own.
  /// tuned by: a safety margin: the lower quartile of nine stands six calls that were disturbed.
  /// without it: the backward of every operator counts a start of the engine, of which a stage
  /// has only one.
  constexpr int kEngineCalls = 9;
  const at::Tensor leaf = at::ones({1}, at::TensorOptions().device(device)).set_requires_grad(true);
  const c10::AutoGradMode with_grad(true);
  std::vector<int64_t> times;
  for (int i = 0; i < kEngineCalls; ++i) {
    const at::Tensor result = leaf.view({1});
    const at::Tensor gradient = at::ones_like(result);
    variable_list found;
    const auto call = [&] { found = gradients_of({result}, {leaf}, {gradient}); };
    if (train) {
      train->time(call);
    } else {
      times.push_back(stopwatch.time_ns(call));
    }
  }
  return typical(train ? train->end().host_ns : times);
}

/// The libraries of an accelerator take their workspaces at their first product, in the forward's
/// thread and the backward's, and keep them: not memory of the operator that comes first.
c10::Device with_workspaces(c10::Device device) {
  if (device.is_cpu()) return device;
  const c10::AutoGradMode with_grad(true);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    try {
      const at::Tensor matrix = at::ones({16, 16}, at::TensorOptions().device(device).dtype(dtype));
      const at::Tensor leaf = matrix.clone().set_requires_grad(true);
      const at::Tensor product = at::linear(matrix, leaf);
      const variable_list found = gradients_of({product}, {leaf}, {at::ones_like(product)});
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error&) {  // it need not have the dtype, and then no workspace for it
      continue;
    }
  }
  return device;
}

}  // namespace

Bench::Bench(c10::Device device, int64_t step_bytes, int64_t cache_bytes)
    : device(with_workspaces(device)),
      stopwatch(device),
      train(device.is_cpu() ? std::nullopt
                            : std::optional<Train>(std::in_place, device, cache_bytes)),
      cache(device, step_bytes),
      rotated_bytes(cache_bytes > 0 ? 2 * cache_bytes : kRotatedBytes),
      engine_ns(time_engine(stopwatch, train, device)) {}

cost::NodeCost time_node(const ir::Graph& graph, ir::NodeId node, const ops::Objects& objects,
                         std::vector<at::Tensor> operands, int64_t rows, int repeats,
                         Bench& bench) {
  Timer timer(graph, node, objects, std::move(operands), rows, bench);
  cost::NodeCost cost;
  const Sample first = timer.run(&cost.workspace_bytes);
  Samples samples;
  const bool is_long = first.forward_ns + first.backward_ns > kLongCall_ns;
  // Also once more when it is long: the first call's memory may come from the system, page by page.
  const int calls = is_long ? std::min(repeats, 1) : repeats;
  int64_t busy_ns = first.forward_ns + first.backward_ns;  // at most what the host takes
  for (int round = 0; round < kTimingRounds && calls > 0; ++round) {
    if (bench.train) {
      if (!timer.run_train(calls, busy_ns, samples)) busy_ns *= 2;
      if (!is_disturbed(samples.forward_ns) && !is_disturbed(samples.backward_ns)) break;
      continue;
    }
    for (int i = 0; i < calls; ++i) {
      const Sample sample = timer.run(nullptr);
      samples.forward_ns.push_back(sample.forward_ns);
      samples.backward_ns.push_back(sample.backward_ns);
    }
    if (!is_disturbed(samples.forward_ns) && !is_disturbed(samples.backward_ns)) break;
  }
  cost.forward_ns =
      typical_of({&samples.forward_ns, &samples.forward_with_wait_ns}, first.forward_ns);
  cost.backward_ns =
      typical_of({&samples.backward_ns, &samples.backward_with_wait_ns}, first.backward_ns);
  if (!bench.train) return cost;
  // Without a train the first call, for which both were waited for, is the device's.
  if (!samples.forward_host_ns.empty()) cost.forward_host_ns = typical(samples.forward_host_ns);
  if (!samples.backward_host_ns.empty()) cost.backward_host_ns = typical(samples.backward_host_ns);
  return cost;
}

}  // namespace rannc::profile
