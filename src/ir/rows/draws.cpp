#include "rannc/ir/draws.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "ir/rows/row_call.h"

namespace rannc::ir {
namespace {

constexpr std::string_view kLibrary = "aten::";

struct Rule {
  std::string_view op;  ///< without "aten::"
  Draw draw;
};
constexpr std::array<Rule, 24> kRules{{
    {"dropout", Draw::dropout},
    {"dropout_", Draw::dropout},
    {"native_dropout", Draw::native_dropout},
    {"feature_dropout", Draw::feature_dropout},
    {"feature_dropout_", Draw::feature_dropout},
    {"alpha_dropout", Draw::alpha_dropout},
    {"alpha_dropout_", Draw::alpha_dropout},
    {"feature_alpha_dropout", Draw::feature_alpha_dropout},
    {"feature_alpha_dropout_", Draw::feature_alpha_dropout},
    {"bernoulli", Draw::bernoulli},
    {"bernoulli.p", Draw::bernoulli},
    {"bernoulli_.float", Draw::bernoulli},
    {"bernoulli_.Tensor", Draw::bernoulli},
    {"rand", Draw::uniform},
    {"rand_like", Draw::uniform},
    {"uniform_", Draw::uniform},
    {"randn", Draw::normal},
    {"randn_like", Draw::normal},
    {"normal_", Draw::normal},
    {"exponential_", Draw::exponential},
    {"randint", Draw::integers},
    {"randint.low", Draw::integers},
    {"randint_like", Draw::integers},
    {"randint_like.low_dtype", Draw::integers},
}};

/// Arguments with which an operator that may draw says that it does not: a probability of 0,
/// evaluation. Where they are left out, their defaults say so.
struct Switches {
  std::string_view op;  ///< base name
  std::optional<size_t> probability;
  std::optional<size_t> training;
  std::optional<size_t> layers;  ///< dropout is between layers
};
constexpr std::optional<size_t> kNowhere;
constexpr std::array<Switches, 12> kSwitches{{
    {"dropout", 1, 2, kNowhere},
    {"native_dropout", 1, 2, kNowhere},
    {"feature_dropout", 1, 2, kNowhere},
    {"alpha_dropout", 1, 2, kNowhere},
    {"feature_alpha_dropout", 1, 2, kNowhere},
    {"scaled_dot_product_attention", 4, kNowhere, kNowhere},
    {"lstm", 5, 6, 4},
    {"gru", 5, 6, 4},
    {"rnn_tanh", 5, 6, 4},
    {"rnn_relu", 5, 6, 4},
    {"rrelu", kNowhere, 3, kNowhere},
    {"rrelu_with_noise", kNowhere, 4, kNowhere},
}};

bool is_off(const Node& node, std::optional<size_t> index) {
  if (!index) return false;
  if (*index >= node.inputs.size()) return true;
  const Argument& argument = node.inputs[*index];
  if (const auto* real = std::get_if<double>(&argument)) return *real == 0;
  if (const auto* integer = std::get_if<AffineInt>(&argument)) return *integer == AffineInt{};
  const auto* boolean = std::get_if<bool>(&argument);
  return boolean != nullptr && !*boolean;
}

std::optional<Switches> switches_of(const Node& node) {
  if (node.kind != OpKind::dispatcher) return std::nullopt;
  const auto found = std::ranges::find(kSwitches, base_name(node.op), &Switches::op);
  if (found == kSwitches.end()) return std::nullopt;
  Switches switches = *found;
  if (node.op.ends_with(".data")) {  // a packed sequence: its batch sizes come before
    for (auto* index : {&switches.probability, &switches.training, &switches.layers}) ++**index;
  }
  return switches;
}

bool is_switched_off(const Node& node) {
  const std::optional<Switches> switches = switches_of(node);
  if (!switches) return false;
  const AffineInt* layers = nullptr;
  if (switches->layers && *switches->layers < node.inputs.size()) {
    layers = std::get_if<AffineInt>(&node.inputs[*switches->layers]);
  }
  return is_off(node, switches->probability) || is_off(node, switches->training) ||
         (layers != nullptr && *layers == AffineInt{1, 0});
}

}  // namespace

bool may_draw(std::string_view op) {
  const std::string_view base = base_name(op);
  const Operator& known = find_operator(base);
  if (!known.name.empty()) return has(known.traits, Trait::draws);
  // Of another library, or not in the table: it is called so.
  return std::ranges::any_of(std::array{"rand", "dropout", "attention"}, [&](const char* part) {
    return base.find(part) != std::string_view::npos;
  });
}

bool draws(const Node& node) {
  if (node.kind != OpKind::dispatcher) return true;
  return may_draw(node.op) && !is_switched_off(node);
}

std::optional<size_t> drop_probability(const Node& node) {
  if (!node.op.starts_with(kLibrary)) return std::nullopt;
  const std::optional<Switches> switches = switches_of(node);
  return switches ? switches->probability : std::nullopt;
}

std::optional<Draw> keyed_draw(const Node& node) {
  if (node.kind != OpKind::dispatcher || !draws(node) || !node.op.starts_with(kLibrary)) {
    return std::nullopt;
  }
  const std::string_view op = std::string_view(node.op).substr(kLibrary.size());
  const auto found = std::ranges::find(kRules, op, &Rule::op);
  return found == kRules.end() ? std::nullopt : std::optional(found->draw);
}

}  // namespace rannc::ir
