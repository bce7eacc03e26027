#include "runtime/stage/keyed_draw.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "rannc/ops/dtype.h"
#include "rannc/util/error.h"
#include "rannc/util/philox.h"
#include "runtime/device/host_memory.h"

namespace rannc::runtime {
namespace {

/// In the place of a sample, for what has no rows.
constexpr uint64_t kNoSample = ~uint64_t{0};
/// Random words that are drawn before they become numbers (16 KiB, half of a first-level cache),
/// and the fewest numbers that are worth a thread.
/// tuned by: drawing 2^20 numbers in blocks of 256 to 2^20 words: 256 take 4 % longer, all others
/// the same, so this is a bound on the stack; and 16,384 numbers take 70 us, starting a thread 24
/// us. without it: shorter blocks begin more often, longer ones take memory for nothing; threads
/// for few numbers take longer to start than to draw.
constexpr size_t kWordsAtOnce = 4096;
constexpr int64_t kLeastForAThread = 16384;

constexpr double kTo32 = 1.0 / 4294967296.0;  // 2^-32
/// SELU's scale times its alpha.
constexpr double kAlpha = 1.7580993408473766;

/// FNV-1a, which does not change from one standard library to the next.
uint64_t hash(const std::string& text) {
  uint64_t result = 0xcbf29ce484222325;
  for (char letter : text) {
    result = (result ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return result;
}

/// Where the numbers of the rows lie in a tensor of `sizes`.
struct Layout {
  int64_t groups = 1;          ///< of numbers, each with a sample of its own
  std::vector<int64_t> apart;  ///< sizes with the groups first
  std::vector<int64_t> order;  ///< of these dimensions, so that a reshape gives the tensor
};

Layout layout_of(const ir::Rows& rows, const std::vector<int64_t>& sizes, int64_t samples) {
  const auto dim = static_cast<size_t>(rows.dim);
  Layout layout;
  if (rows.kind != ir::RowKind::apart) return layout;
  RANNC_CHECK(dim < sizes.size() && sizes[dim] == rows.outer * samples * rows.inner,
              c10::str("random numbers ", sizes, " for ", samples, " rows in dimension ", dim));
  layout.groups = samples;
  layout.apart.push_back(samples);
  layout.apart.insert(layout.apart.end(), sizes.begin(), sizes.begin() + rows.dim);
  layout.apart.insert(layout.apart.end(), {rows.outer, rows.inner});
  layout.apart.insert(layout.apart.end(), sizes.begin() + rows.dim + 1, sizes.end());
  for (size_t place = 1; place < layout.apart.size(); ++place) {
    layout.order.push_back(static_cast<int64_t>(place));
  }
  layout.order.insert(layout.order.begin() + rows.dim + 1, 0);
  return layout;
}

}  // namespace

KeyedDraw::KeyedDraw(const ir::Graph& graph, ir::NodeId node, ir::Draw draw, c10::Device device)
    : node_(graph[node]), draw_(draw), name_(hash(node_.name)), device_(device) {
  const auto valid = std::ranges::find_if(node_.outputs, &ir::ValueId::valid);
  RANNC_CHECK(valid != node_.outputs.end(), node_.name);
  like_ = graph[*valid];
  if (like_.on_host) device_ = c10::kCPU;
}

void KeyedDraw::call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results,
                     const DrawKey& key) const {
  results.clear();
  const double probability = number(1, 0.5);
  const auto mask = [&](double value) {
    return kept(operands[0].scalar_type(), sizes(operands, key), probability, value, key);
  };
  const double scale = probability < 1 ? 1 / (1 - probability) : 0;
  switch (draw_) {
    case ir::Draw::dropout:
    case ir::Draw::feature_dropout:
      results.push_back(drop(operands[0], mask(scale)));
      break;
    case ir::Draw::native_dropout: {
      const at::Tensor scaled = mask(scale);
      results.push_back(drop(operands[0], scaled));
      results.push_back(scaled.ne(0));
      break;
    }
    case ir::Draw::alpha_dropout:
    case ir::Draw::feature_alpha_dropout:
      results.push_back(alpha_drop(operands[0], sizes(operands, key), key));
      break;
    case ir::Draw::bernoulli:
    case ir::Draw::uniform:
    case ir::Draw::normal:
    case ir::Draw::exponential:
    case ir::Draw::integers:
      results.push_back(fill(operands, key));
      break;
  }
  for (size_t index = 0; index < node_.outputs.size() && index < results.size(); ++index) {
    if (!node_.outputs[index].valid()) results[index].reset();
  }
}

std::vector<int64_t> KeyedDraw::sizes(std::span<at::Tensor> operands, const DrawKey& key) const {
  std::vector<int64_t> result;
  if (operands.empty()) {
    const auto rows = static_cast<int64_t>(key.samples.size());
    for (const ir::AffineInt& dim : like_.dims) result.push_back(dim.at(rows));
    return result;
  }
  result = operands[0].sizes().vec();
  if (is_by_feature()) {
    for (size_t dim = 2; dim < result.size(); ++dim) result[dim] = 1;
  }
  return result;
}

bool KeyedDraw::is_by_feature() const {
  return draw_ == ir::Draw::feature_dropout || draw_ == ir::Draw::feature_alpha_dropout;
}

double KeyedDraw::number(size_t argument, double fallback) const {
  if (argument >= node_.inputs.size()) return fallback;
  if (const auto* real = std::get_if<double>(&node_.inputs[argument])) return *real;
  const auto* integer = std::get_if<ir::AffineInt>(&node_.inputs[argument]);
  return integer == nullptr ? fallback : static_cast<double>(integer->fixed);
}

template <typename T, typename Convert>
at::Tensor KeyedDraw::generate(const std::vector<int64_t>& sizes, size_t words_each,
                               const DrawKey& key, const Convert& convert) const {
  const at::NoGradGuard no_grad;
  const int64_t total =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  const bool rows_share = is_by_feature() && like_.rows.dim >= 2;
  const Layout layout = layout_of(rows_share ? ir::Rows{} : like_.rows, sizes,
                                  static_cast<int64_t>(key.samples.size()));
  const int64_t each = layout.groups == 0 ? 0 : total / layout.groups;
  const uint64_t stream = derive_key(key.steps.seed, static_cast<uint64_t>(key.steps.step), name_);
  // Pinned for an accelerator, so that the host need not wait for the copy.
  at::Tensor numbers = host_memory(total, c10::CppTypeToScalarType<T>::value, device_);
  T* const data = numbers.mutable_data_ptr<T>();

  const size_t at_once = kWordsAtOnce / words_each;
  const int64_t grain = std::max<int64_t>(kLeastForAThread / std::max<int64_t>(each, 1), 1);
  at::parallel_for(0, layout.groups, grain, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, kWordsAtOnce> words{};
    for (int64_t group = begin; group < end; ++group) {
      const uint64_t sample = layout.order.empty()
                                  ? kNoSample
                                  : static_cast<uint64_t>(key.samples[static_cast<size_t>(group)]);
      T* const own = data + group * each;
      for (size_t first = 0; first < static_cast<size_t>(each); first += at_once) {
        const size_t count = std::min(at_once, static_cast<size_t>(each) - first);
        fill_random(stream, sample, first * words_each / 4,
                    std::span(words).first(count * words_each));
        for (size_t entry = 0; entry < count; ++entry) {
          own[first + entry] = convert(&words[entry * words_each]);
        }
      }
    }
  });
  numbers = numbers.to(device_, /*non_blocking=*/true);
  if (!layout.order.empty()) numbers = numbers.view(layout.apart).permute(layout.order);
  return numbers.reshape(sizes);
}

/// `value` with probability 1 - `probability`, else 0.
at::Tensor KeyedDraw::kept(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                           double probability, double value, const DrawKey& key) const {
  const auto dropped = static_cast<uint64_t>(std::llround(probability / kTo32));
  if (dtype == at::kDouble) {
    return generate<double>(sizes, 1, key,
                            [=](const uint32_t* word) { return *word >= dropped ? value : 0.0; });
  }
  const auto narrow = static_cast<float>(value);
  return generate<float>(sizes, 1, key,
                         [=](const uint32_t* word) { return *word >= dropped ? narrow : 0.0F; })
      .to(dtype);
}

/// In [0, 1), with as many bits as the dtype's significand holds.
at::Tensor KeyedDraw::uniform(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                              const DrawKey& key) const {
  if (dtype == at::kDouble) {
    return generate<double>(sizes, 2, key, [](const uint32_t* words) {
      const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
      return std::ldexp(static_cast<double>(bits >> 11), -53);
    });
  }
  const int bits = dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : 24;
  const auto unit = static_cast<float>(std::ldexp(1.0, -bits));
  return generate<float>(
             sizes, 1, key,
             [=](const uint32_t* word) { return static_cast<float>(*word >> (32 - bits)) * unit; })
      .to(dtype);
}

at::Tensor KeyedDraw::drop(const at::Tensor& input, const at::Tensor& mask) const {
  return node_.writes.empty() ? input.mul(mask) : at::Tensor(input).mul_(mask);
}

at::Tensor KeyedDraw::alpha_drop(const at::Tensor& input, const std::vector<int64_t>& sizes,
                                 const DrawKey& key) const {
  const double probability = number(1, 0.5);
  at::Tensor noise = kept(input.scalar_type(), sizes, probability, 1.0, key);
  if (probability >= 1) return drop(input, noise);
  const double a = 1 / std::sqrt((kAlpha * kAlpha * probability + 1) * (1 - probability));
  at::Tensor shift;
  {
    const at::NoGradGuard no_grad;
    shift = noise.add(-1).mul_(kAlpha * a).add_(kAlpha * a * probability);
    noise.mul_(a);
  }
  const at::Tensor scaled = drop(input, noise);
  return node_.writes.empty() ? scaled.add(shift) : at::Tensor(scaled).add_(shift);
}

at::Tensor KeyedDraw::integers(const std::vector<int64_t>& sizes, const DrawKey& key) const {
  // (high, sizes), (low, high, sizes), and both with a tensor before.
  const size_t first = node_.op.find("_like") == std::string::npos ? 0 : 1;
  const bool has_low = node_.op.find(".low") != std::string::npos;
  const auto low = has_low ? static_cast<int64_t>(number(first, 0)) : 0;
  const auto high = static_cast<int64_t>(number(first + (has_low ? 1 : 0), 1));
  const auto range = static_cast<uint64_t>(high - low);
  if (high <= low || range > uint64_t{1} << 32) {
    throw Error(c10::str("deterministic_dropout: node '", node_.name, "' (", node_.op, ", module '",
                         node_.module, "') draws integers from ", low, " up to ", high,
                         ", but at most 2^32 different ones can be drawn"));
  }
  return generate<int64_t>(sizes, 1, key, [=](const uint32_t* word) {
    return low + static_cast<int64_t>(*word * range >> 32);
  });
}

at::Tensor KeyedDraw::fill(std::span<at::Tensor> operands, const DrawKey& key) const {
  const at::ScalarType dtype = ops::to_torch(like_.dtype);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const std::vector<int64_t> shape = sizes(operands, key);
  const bool in_place = !node_.writes.empty();
  at::Tensor drawn;
  switch (draw_) {
    case ir::Draw::bernoulli: {
      const at::NoGradGuard no_grad;
      const bool own = node_.op == "aten::bernoulli";
      if (own || node_.op == "aten::bernoulli_.Tensor") {
        const at::Tensor& probability = operands[own ? 0 : 1];
        drawn =
            uniform(probability.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, shape, key)
                .lt(probability);
      } else {
        drawn = kept(dtype, shape, 1 - number(1, 0.5), 1.0, key);
      }
      break;
    }
    case ir::Draw::uniform: {
      drawn = uniform(dtype, shape, key);
      const double from = in_place ? number(1, 0) : 0;
      const double to = in_place ? number(2, 1) : 1;
      if (from != 0 || to != 1) drawn.mul_(to - from).add_(from);
      break;
    }
    case ir::Draw::normal: {
      const double mean = in_place ? number(1, 0) : 0;
      const double deviation = in_place ? number(2, 1) : 1;
      // Box and Muller.
      const auto convert = [=](const uint32_t* words) {
        const double radius = std::sqrt(-2 * std::log((words[0] + 1.0) * kTo32));
        return mean + deviation * radius * std::cos(2 * std::numbers::pi * kTo32 * words[1]);
      };
      drawn = generate<double>(shape, 2, key, convert).to(wide);
      break;
    }
    case ir::Draw::exponential: {
      const double rate = number(1, 1);
      const auto convert = [=](const uint32_t* word) {
        return -std::log((*word + 1.0) * kTo32) / rate;
      };
      drawn = generate<double>(shape, 1, key, convert).to(wide);
      break;
    }
    default:
      drawn = integers(shape, key);
  }
  if (in_place) return at::Tensor(operands[0]).copy_(drawn);
  return drawn.to(dtype);
}

}  // namespace rannc::runtime
