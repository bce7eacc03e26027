#include "rannc/ir/operators.h"

#include <unordered_map>

#include "ir/operators/tables.h"
#include "rannc/util/error.h"

namespace rannc::ir {
namespace {

Trait traits_of(OperatorFamily family) {
  using F = OperatorFamily;
  if (family == F::multiply || family == F::divide) return Trait::pointwise | Trait::scales;
  if (family >= F::pointwise && family <= F::fill) return Trait::pointwise;
  if (family >= F::create && family <= F::counting) return Trait::factory;
  if (family >= F::reshape && family <= F::diagonal) return Trait::view;
  if (family >= F::sum && family <= F::similarity) return Trait::reduction;
  if (family >= F::along_dimension && family <= F::triangle) return Trait::along;
  if (family >= F::matmul && family <= F::convolution) return Trait::product;
  return family == F::pointwise_loss ? Trait::loss : Trait::none;
}

struct Index {
  std::vector<Operator> all;
  std::unordered_map<std::string_view, size_t> by_name;

  void add(const Operator& line) {
    RANNC_CHECK(by_name.emplace(line.name, all.size()).second, "an operator has two lines");
    all.push_back(line);
  }
};

const Index& index() {
  static const Index made = [] {
    using namespace operators;
    Index result;
    for (const auto& part : {pointwise(), create(), views(), arrange(), reduce(), matmul(),
                             layers(), losses(), indexing()}) {
      for (Operator line : part) {
        line.traits = line.traits | traits_of(line.family);
        result.add(line);
      }
    }
    for (const auto& [name, of] : other_names()) {
      Operator line = result.all[result.by_name.at(of)];
      line.name = name;
      line.other_name_of = of;
      result.add(line);
    }
    return result;
  }();
  return made;
}

}  // namespace

std::string_view base_name(std::string_view op) {
  if (const size_t space = op.find("::"); space != std::string_view::npos) {
    op.remove_prefix(space + 2);
  }
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_') && !op.ends_with("__")) op.remove_suffix(1);
  return op;
}

const std::vector<Operator>& all_operators() { return index().all; }

const Operator& find_operator(std::string_view base) {
  static constexpr Operator kUnknown;
  const auto found = index().by_name.find(base);
  return found == index().by_name.end() ? kUnknown : index().all[found->second];
}

}  // namespace rannc::ir
