#include "partition/blocks/pieces.h"

#include <gtest/gtest.h>

#include <random>

#include "partition/problems.h"

namespace rannc::partition {
namespace {

using testing::chain;

TEST(AtomicPieces, AreSingleNodesInTheGivenOrderWithoutGroups) {
  EXPECT_EQ(atomic_pieces(chain({{}, {}, {}})), (std::vector<Piece>{{0}, {1}, {2}}));
}

TEST(AtomicPieces, KeepGroupsTogether) {
  cost::GraphProfile profile = chain({{}, {}, {}, {}});
  profile.nodes[1].group = profile.nodes[2].group = "view";
  EXPECT_EQ(atomic_pieces(profile), (std::vector<Piece>{{0}, {1, 2}, {3}}));
}

TEST(AtomicPieces, TakeInWhatLiesBetweenTheNodesOfAGroup) {
  // 0 -> 1 -> 2 -> 3 and group {0, 2}: node 1 reads the group and is read by it.
  cost::GraphProfile profile = chain({{}, {}, {}, {}});
  profile.nodes[0].group = profile.nodes[2].group = "write";
  EXPECT_EQ(atomic_pieces(profile), (std::vector<Piece>{{0, 1, 2}, {3}}));
}

TEST(AtomicPieces, MergeTwoGroupsThatReadEachOther) {
  // Groups {0, 3} and {1, 2}: 0 -> 1 and 2 -> 3 go around in a circle.
  cost::GraphProfile profile = chain({{}, {}, {}, {}});
  profile.nodes[2].inputs = {{true, 0, 0}};
  profile.nodes[0].group = profile.nodes[3].group = "a";
  profile.nodes[1].group = profile.nodes[2].group = "b";
  EXPECT_EQ(atomic_pieces(profile), (std::vector<Piece>{{0, 1, 2, 3}}));
}

TEST(AtomicPieces, ComeAfterWhatTheyReadWhenAGroupReachesFarAhead) {
  // Node 0 and the group {1, 3} where 3 reads 2, which reads 0 only: 2 must come before the group.
  cost::GraphProfile profile = chain({{}, {}, {}, {}});
  profile.nodes[1].inputs = {{true, 0, 0}};
  profile.nodes[2].inputs = {{false, 0, 0}};
  profile.nodes[1].group = profile.nodes[3].group = "g";
  EXPECT_EQ(atomic_pieces(profile), (std::vector<Piece>{{0}, {2}, {1, 3}}));
}

TEST(AtomicPieces, FormATopologicalOrderOfEveryRandomGraph) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    cost::GraphProfile profile = testing::random_profile(random, 30);
    for (cost::ProfileNode& node : profile.nodes) {
      if (random() % 4 == 0) node.group = "g" + std::to_string(random() % 6);
    }
    const std::vector<Piece> pieces = atomic_pieces(profile);
    std::vector<size_t> piece_of(profile.nodes.size(), SIZE_MAX);
    for (size_t k = 0; k < pieces.size(); ++k) {
      for (const uint32_t node : pieces[k]) {
        ASSERT_EQ(piece_of[node], SIZE_MAX) << "node " << node << " is in two pieces";
        piece_of[node] = k;
      }
    }
    for (size_t node = 0; node < profile.nodes.size(); ++node) {
      ASSERT_NE(piece_of[node], SIZE_MAX) << "node " << node << " is in no piece";
      for (const cost::ProfileUse& use : profile.nodes[node].inputs) {
        if (use.is_input) continue;
        ASSERT_LE(piece_of[use.node], piece_of[node]) << "trial " << trial;
      }
      for (size_t other = 0; other < node; ++other) {
        const std::string& group = profile.nodes[node].group;
        if (!group.empty() && group == profile.nodes[other].group) {
          ASSERT_EQ(piece_of[node], piece_of[other]) << "group " << group << " is torn";
        }
      }
    }
  }
}

}  // namespace
}  // namespace rannc::partition
