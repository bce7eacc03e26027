#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/sharding/factor_call.h"
#include "rannc/ir/shard.h"

namespace rannc::ir::sharding {

/// What each node does with each factor.
class Analysis {
 public:
  explicit Analysis(const Graph& graph);

  struct Found {
    ContentId factor;
    int dim;
  };
  /// From here on `content` is a factor, whatever it is made of: places of a sequence, of which
  /// some may be put in front of others. Gives its id.
  ContentId as_factor(ContentId content);
  /// Factors in the dimensions of a value.
  [[nodiscard]] const std::vector<Found>& in(ValueId value) const { return in_.at(value.index); }
  /// The dimension of a value that has it; nothing where none, or several, have.
  [[nodiscard]] std::optional<int> dim(ValueId value, ContentId factor) const;
  [[nodiscard]] bool has(ValueId value, ContentId factor) const;
  /// How many stretches a place has of a value that is cut, at most; nothing where their number
  /// depends on the rows, so that no collective can have the value.
  [[nodiscard]] std::optional<int64_t> stretches(ValueId value, ContentId factor) const;
  /// Whether a node can run on parts of it: every dimension passes, is reduced or exchanged.
  [[nodiscard]] bool can_run(NodeId node, ContentId factor) const;
  [[nodiscard]] bool has_role(NodeId node, ContentId factor, Role role) const;
  [[nodiscard]] bool is_tile(NodeId node) const { return tiles_.has(node); }
  [[nodiscard]] const Tiles& tiles() const { return tiles_; }
  [[nodiscard]] const Dimensions& dimensions() const { return dimensions_; }
  /// Factors of parameters, with the names that files use; in the order of the graph.
  [[nodiscard]] const std::vector<std::pair<ContentId, Factor>>& of_parameters() const {
    return of_parameters_;
  }
  /// Names of the factors of a parameter: which one of which dimension.
  [[nodiscard]] std::map<ContentId, std::string> ids(const Graph& graph, ValueId parameter) const;
  [[nodiscard]] int64_t units(ContentId factor) const { return dimensions_.contents.size(factor); }

 private:
  void join(const Graph& graph);
  void find_factors(const Graph& graph);
  void name_factors(const Graph& graph);

  Dimensions dimensions_;
  Tiles tiles_;
  std::vector<std::vector<std::pair<ContentId, Role>>> marks_;  // by node: contents
  std::vector<std::map<ContentId, std::set<Role>>> roles_;      // by node and factor
  std::vector<std::vector<Found>> in_;                          // by value
  std::map<ContentId, std::string> why_not_;
  std::vector<std::pair<ContentId, Factor>> of_parameters_;
};

}  // namespace rannc::ir::sharding
