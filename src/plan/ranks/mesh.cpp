#include "rannc/plan/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "rannc/util/error.h"

namespace rannc::plan {

StageMesh::StageMesh(std::span<const Rank> ranks, Mesh mesh) : ranks_(ranks), mesh_(mesh) {
  RANNC_CHECK(mesh.replicas >= 0 && mesh.y >= 1 && mesh.x >= 1 &&
                  static_cast<size_t>(mesh.size()) == ranks.size(),
              fmt::format("{} ranks on a mesh of {} replicas of {} x {} places", ranks.size(),
                          mesh.replicas, mesh.y, mesh.x));
}

std::optional<int> StageMesh::position_of(Rank rank) const {
  const auto found = std::ranges::find(ranks_, rank);
  if (found == ranks_.end()) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

std::optional<int> StageMesh::replica_of(Rank rank) const {
  const std::optional<int> position = position_of(rank);
  if (!position) return std::nullopt;
  return *position / places();
}

std::optional<int> StageMesh::place_of(Rank rank) const {
  const std::optional<int> position = position_of(rank);
  if (!position) return std::nullopt;
  return *position % places();
}

Rank StageMesh::rank(int replica, int place) const {
  RANNC_CHECK(replica >= 0 && replica < replicas() && place >= 0 && place < places(),
              fmt::format("replica {}, place {} of {} replicas of {} places", replica, place,
                          replicas(), places()));
  return ranks_[static_cast<size_t>(replica * places() + place)];
}

std::span<const Rank> StageMesh::ranks_of_replica(int replica) const {
  RANNC_CHECK(replica >= 0 && replica < replicas(),
              fmt::format("replica {} of {}", replica, replicas()));
  const auto places = static_cast<size_t>(this->places());
  return ranks_.subspan(static_cast<size_t>(replica) * places, places);
}

std::vector<Rank> StageMesh::ranks_of_place(int place) const {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<size_t>(replicas()));
  for (int replica = 0; replica < replicas(); ++replica) ranks.push_back(rank(replica, place));
  return ranks;
}

StageMesh mesh_of(std::span<const Rank> ranks) {
  return {ranks, Mesh{.replicas = static_cast<int>(ranks.size())}};
}

StageMesh mesh_of(const Stage& stage) {
  const int size = stage.axes.places();
  return {stage.ranks, Mesh{.replicas = mesh_of(stage.ranks).replicas() / size,
                            .y = stage.axes.y,
                            .x = stage.axes.x}};
}

}  // namespace rannc::plan
