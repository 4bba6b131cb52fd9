#include "rendezvous/membership/recovery.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

class Recoveries : public ::testing::Test {
 protected:
  // Of a round of four nodes.
  static Held of_four(int group_rank) {
    Held held;
    held.round = {1700000000, 7, 3};
    held.group_rank = group_rank;
    held.group_world_size = 4;
    held.nonces = {"nonce-3", "nonce-2"};
    return held;
  }
  void claims(int group_rank) { recovery.claim("key-" + std::to_string(group_rank), of_four(group_rank), false, now); }

  Recovery recovery{5s, {}, ""};
  Recovery::TimePoint now{1h};
};

TEST_F(Recoveries, GreaterPartsClaimIsDecidedAtOnce) {
  EXPECT_FALSE(recovery.are_claims_open());
  for (const int rank : {0, 1}) {
    claims(rank);
    EXPECT_TRUE(recovery.are_claims_open());
    EXPECT_EQ(recovery.deadline(), now + 5s);
  }
  ASSERT_TRUE(recovery.decision(now)) << "half of the nodes, with the lowest group rank";
  EXPECT_EQ(recovery.decision(now)->choice->claim.round, of_four(0).round);
}

TEST_F(Recoveries, LoneClaimIsBelievedOnceTheWaitIsOver) {
  claims(1);
  EXPECT_FALSE(recovery.decision(now + 4s));
  ASSERT_TRUE(recovery.decision(now + 5s));
  EXPECT_TRUE(recovery.decision(now + 5s)->choice->is_lone);
}

TEST_F(Recoveries, WithoutAClaimTheWaitIsOver) {
  claims(1);
  recovery.withdraw("key-1");
  ASSERT_TRUE(recovery.decision(now));
  EXPECT_FALSE(recovery.decision(now)->choice);
  recovery.close_claims();
  EXPECT_FALSE(recovery.are_claims_open());
  EXPECT_EQ(recovery.deadline(), std::nullopt);
}

TEST_F(Recoveries, OtherMembersOfTheAdoptedRoundAreAwaitedUntilTheTimeOfTheFirstClaim) {
  claims(0);
  recovery.adopt(of_four(0), false, now + 2s);
  recovery.close_claims();
  EXPECT_FALSE(recovery.are_claims_open());
  EXPECT_EQ(recovery.deadline(), now + 5s);
  EXPECT_TRUE(recovery.is_in_doubt());
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_FALSE(recovery.is_over_now()) << rank;
    EXPECT_TRUE(recovery.awaits(rank));
    EXPECT_TRUE(recovery.settle(rank));
    EXPECT_FALSE(recovery.settle(rank)) << "once";
  }
  EXPECT_FALSE(recovery.is_in_doubt());
  EXPECT_TRUE(recovery.is_over_now());
  EXPECT_FALSE(recovery.is_over_now()) << "said once";
  EXPECT_EQ(recovery.deadline(), std::nullopt);
}

TEST_F(Recoveries, RoundStaysInDoubtOnceMembersWereGivenUp) {
  recovery.adopt(of_four(0), false, now);
  recovery.settle(0);
  recovery.settle(2);
  EXPECT_FALSE(recovery.is_due(now + 4s));
  EXPECT_TRUE(recovery.is_due(now + 5s));
  EXPECT_EQ(recovery.give_up(), "nodes 1, 3");
  EXPECT_FALSE(recovery.awaits_anyone());
  EXPECT_TRUE(recovery.is_in_doubt()) << "they may have gone on elsewhere";
  recovery.begin_own_round();
  EXPECT_FALSE(recovery.is_in_doubt());
}

TEST_F(Recoveries, TextOfManyMissingNodesStaysShort) {
  auto held = of_four(0);
  held.group_world_size = 10;
  recovery.adopt(held, false, now);
  EXPECT_EQ(recovery.give_up(), "nodes 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST_F(Recoveries, NoncesProveThatANodeWasAMember) {
  Held without = of_four(0), stranger = of_four(0), older = of_four(0);
  without.nonces.clear();
  stranger.nonces = {"made up"};
  older.nonces = {"nonce-2"};
  recovery.adopt(of_four(1), false, now);
  EXPECT_TRUE(recovery.proves_last_round(of_four(0).nonces));
  for (const auto& held : {without, stranger, older}) EXPECT_FALSE(recovery.proves_last_round(held.nonces));
  EXPECT_TRUE(recovery.proves_any_round(older));
  for (const auto& held : {without, stranger}) EXPECT_FALSE(recovery.proves_any_round(held));
  recovery.adopt(without, false, now);
  EXPECT_TRUE(recovery.proves_last_round(without.nonces)) << "an older membership gave the round no nonce";
}

TEST_F(Recoveries, OnlyTheLastNoncesAreKept) {
  for (int i = 0; i < 9; ++i) recovery.add_nonce("nonce-" + std::to_string(i));
  EXPECT_EQ(recovery.nonce(), "nonce-8");
  Held held;
  held.nonces = {"nonce-0"};
  EXPECT_FALSE(recovery.proves_any_round(held));
  held.nonces = {"nonce-1"};
  EXPECT_TRUE(recovery.proves_any_round(held));
}

TEST_F(Recoveries, ClaimThatDoesNotCountIsToldOnceAMinute) {
  const std::string text =
      "host a (10.0.0.1) says that it has round 3 of the job, of which the nodes here know nothing: that does not "
      "count";
  const auto tell = [&](Recovery::TimePoint when) { return recovery.tell_claim("host a (10.0.0.1)", 3, when); };
  EXPECT_EQ(tell(now), text);
  EXPECT_EQ(tell(now + 1s), std::nullopt);
  EXPECT_EQ(tell(now + 59s), std::nullopt);
  EXPECT_EQ(tell(now + 1min), text + "; 2 claims before it did not either");
  EXPECT_EQ(tell(now + 2min), text);
}

TEST(CallProof, AndItsAnswerAreTheTwoHalvesOfANonce) {
  const std::string nonce = "0123456789abcdeffedcba9876543210";
  EXPECT_EQ(call_proof(nonce), "0123456789abcdef0000000000000000");
  EXPECT_EQ(answer_proof(nonce), "0000000000000000fedcba9876543210");
}

}  // namespace
}  // namespace ddp::rendezvous
