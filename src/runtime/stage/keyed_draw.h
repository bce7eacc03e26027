#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rannc/ir/draws.h"
#include "rannc/ir/graph.h"
#include "rannc/runtime/draws.h"

namespace rannc::runtime {

/// A node that draws, with numbers that depend on seed, step, the node's name and each row's sample
/// alone: the same under every plan. What has no rows is the same for all of them.
class KeyedDraw {
 public:
  KeyedDraw(const ir::Graph& graph, ir::NodeId node, ir::Draw draw, c10::Device device);

  /// As ops::Operator::call().
  void call(std::span<at::Tensor> operands, std::vector<at::Tensor>& results,
            const DrawKey& key) const;

 private:
  [[nodiscard]] std::vector<int64_t> sizes(std::span<at::Tensor> operands,
                                           const DrawKey& key) const;
  [[nodiscard]] bool is_by_feature() const;
  [[nodiscard]] double number(size_t argument, double fallback) const;

  [[nodiscard]] at::Tensor kept(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                                double probability, double value, const DrawKey& key) const;
  [[nodiscard]] at::Tensor uniform(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                                   const DrawKey& key) const;
  [[nodiscard]] at::Tensor drop(const at::Tensor& input, const at::Tensor& mask) const;
  [[nodiscard]] at::Tensor alpha_drop(const at::Tensor& input, const std::vector<int64_t>& sizes,
                                      const DrawKey& key) const;
  [[nodiscard]] at::Tensor fill(std::span<at::Tensor> operands, const DrawKey& key) const;
  [[nodiscard]] at::Tensor integers(const std::vector<int64_t>& sizes, const DrawKey& key) const;

  /// `convert(words)` for each entry, from `words_each` words of its own.
  template <typename T, typename Convert>
  [[nodiscard]] at::Tensor generate(const std::vector<int64_t>& sizes, size_t words_each,
                                    const DrawKey& key, const Convert& convert) const;

  ir::Node node_;
  ir::Draw draw_;
  ir::Value like_;  ///< says where the rows lie
  uint64_t name_;   ///< hash of the node's name
  c10::Device device_;
};

}  // namespace rannc::runtime
