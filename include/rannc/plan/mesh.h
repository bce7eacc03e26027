#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rannc/plan/plan.h"

namespace rannc::plan {

/// The arrangement of a stage's ranks: replicas, and in each replica `y` times `x` places. Ranks of
/// a replica compute the same rows; ranks of one place hold the same parts of all tensors.
struct Mesh {
  int replicas = 1;
  int y = 1;
  int x = 1;
  [[nodiscard]] int places() const { return y * x; }
  [[nodiscard]] int size() const { return replicas * places(); }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// The ranks of one stage on its mesh: ranks[(i * y + b) * x + a] is replica i, place (a, b), which
/// has the number b * x + a. A view, which the ranks outlive.
class StageMesh {
 public:
  StageMesh(std::span<const Rank> ranks, Mesh mesh);

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] int replicas() const { return mesh_.replicas; }
  [[nodiscard]] int places() const { return mesh_.places(); }
  [[nodiscard]] std::span<const Rank> ranks() const { return ranks_; }

  /// Nothing for a rank of other stages.
  [[nodiscard]] std::optional<int> position_of(Rank rank) const;
  [[nodiscard]] std::optional<int> replica_of(Rank rank) const;
  [[nodiscard]] std::optional<int> place_of(Rank rank) const;

  [[nodiscard]] Rank rank(int replica, int place) const;
  /// The ranks with the rows of `replica`, by place.
  [[nodiscard]] std::span<const Rank> ranks_of_replica(int replica) const;
  /// The ranks that hold the same parts, by replica.
  [[nodiscard]] std::vector<Rank> ranks_of_place(int place) const;

 private:
  std::span<const Rank> ranks_;
  Mesh mesh_;
};

/// One place in each replica: the ranks of a stage are its replicas.
[[nodiscard]] StageMesh mesh_of(std::span<const Rank> ranks);
[[nodiscard]] StageMesh mesh_of(const Stage& stage);

}  // namespace rannc::plan
