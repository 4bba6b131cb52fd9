#include "rendezvous/membership/current_round.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

TEST(CurrentRound, EndsOfItsNodesAddUp) {
  RoundEnded one, other;
  one.stopped = 2;
  one.progress.commits = 5;
  other.stopped = 1;
  other.stopped_at_step = 4;
  other.tree_survived = true;
  other.progress.commits = 3;
  other.progress.checkpoint_step = 0;
  CurrentRound round;
  for (const auto& message : {one, other}) round.note_end(message);
  EXPECT_EQ(round.stopped, 3);
  EXPECT_EQ(round.stopped_at_step, 4);
  EXPECT_TRUE(round.tree_survived);
  EXPECT_EQ(round.kept, (Progress{5, 0})) << "the node that has kept most counts";
  round.note_end({});
  EXPECT_TRUE(round.tree_survived);
}

TEST(CurrentRound, HungRanksAreKnownOnceAndBounded) {
  CurrentRound round;
  EXPECT_TRUE(round.note_hung({3, -1}));
  EXPECT_EQ(round.hung_ranks, std::set<int>{3});
  EXPECT_FALSE(round.note_hung({3}));
  std::vector<int> many;
  for (int rank = 0; rank < 1000; ++rank) many.push_back(rank);
  EXPECT_TRUE(round.note_hung(many));
  EXPECT_EQ(round.hung_ranks.size(), kHungRanksMax);
  EXPECT_FALSE(round.note_hung({1000}));
}

TEST(CurrentRound, LastLossCountsWithTheLastKnownPlace) {
  CurrentRound round;
  round.lose("node 1 was lost", 1s);
  round.loss->place = "b";
  round.lose("nodes 2, 3 did not come", 2s);
  EXPECT_EQ(round.loss->what, "nodes 2, 3 did not come");
  EXPECT_EQ(round.loss->at, 2s);
  EXPECT_EQ(round.loss->place, "b");
}

}  // namespace
}  // namespace ddp::rendezvous
