#include "rendezvous/membership/quorum.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ddp::rendezvous {
namespace {

std::map<int, std::string> nodes(const std::string& names) {
  std::map<int, std::string> out;
  for (const char name : names) out.emplace(static_cast<int>(out.size()), std::string(1, name));
  return out;
}

void start_all(Quorum& quorum, const std::string& names) {
  for (const char name : names) quorum.start(std::string(1, name));
}

TEST(Quorum, IsMoreThanHalfOrHalfWithTheLowestRankOfThoseWhoseEndIsNotProven) {
  const struct {
    const char *nodes, *silent, *gone;
    bool goes_on;
  } cases[] = {{"ab", "b", "", true},     {"ab", "a", "", false},     {"abc", "c", "", true},
               {"abc", "bc", "", false},  {"abc", "b", "c", true},    {"abc", "a", "c", false},
               {"abcd", "cd", "", true},  {"abcd", "bcd", "", false}, {"abcd", "a", "bc", false},
               {"abcd", "d", "bc", true}, {"abcd", "", "bcd", true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.nodes) + ", silent " + c.silent + ", gone " + c.gone);
    Quorum quorum;
    quorum.begin(nodes(c.nodes));
    for (const char name : std::string(c.silent)) quorum.leave({name}, false);
    for (const char name : std::string(c.gone)) quorum.leave({name}, true);
    EXPECT_EQ(quorum.is_greater_part_here(), c.goes_on);
  }
}

TEST(Quorum, NodesThatAreToHaveNoPartDoNotCount) {
  Quorum quorum;
  quorum.begin(nodes("abcd"));
  start_all(quorum, "abcd");
  EXPECT_TRUE(quorum.is_greater_part_without({"c", "d"}));
  EXPECT_FALSE(quorum.is_greater_part_without({"a", "b"}));
  quorum.leave("d", false);
  EXPECT_TRUE(quorum.is_greater_part_without({"c"}));
  EXPECT_FALSE(quorum.is_greater_part_without({"a"}));
  quorum.leave("b", true);
  EXPECT_FALSE(quorum.is_greater_part_without({"c", "b"})) << "whose end is proven does not count either";
  quorum.leave("d", true);
  EXPECT_TRUE(quorum.is_greater_part_without({"c"}));
}

TEST(Quorum, BeforeTheFirstRoundThereIsNobodyToWaitFor) { EXPECT_TRUE(Quorum().is_greater_part_here()); }

TEST(Quorum, IsEstablishedWhenTheLastHasStarted) {
  Quorum quorum;
  quorum.begin(nodes("ab"));
  EXPECT_FALSE(quorum.start("a"));
  EXPECT_FALSE(quorum.start("a"));
  EXPECT_FALSE(quorum.start("x"));
  EXPECT_TRUE(quorum.start("b"));
  EXPECT_TRUE(quorum.is_established());
}

TEST(Quorum, TheEstablishedRoundCountsUntilTheNextOneIs) {
  Quorum quorum;
  quorum.begin(nodes("abc"));
  start_all(quorum, "abc");
  quorum.begin(nodes("adef"));
  quorum.begin(nodes("adefg"));  // that one never was established
  quorum.leave("b", false);
  EXPECT_TRUE(quorum.is_greater_part_here());
  quorum.leave("c", false);
  EXPECT_FALSE(quorum.is_greater_part_here()) << "b and c are the greater part of the last one that was";
  quorum.come("c");
  EXPECT_TRUE(quorum.is_greater_part_here());
  quorum.leave("c", false);
  start_all(quorum, "adefg");
  EXPECT_TRUE(quorum.is_greater_part_here());
}

TEST(Quorum, AnAdoptedRoundIsSilentUntilItsNodesCome) {
  Quorum quorum;
  quorum.adopt(5, 0);
  quorum.establish();
  quorum.seat(3, "d");
  quorum.seat(1, "b");
  EXPECT_FALSE(quorum.is_greater_part_here());
  quorum.seat(1, "x");
  EXPECT_FALSE(quorum.knows("x")) << "the place is taken";
  quorum.seat(2, "c");
  EXPECT_TRUE(quorum.is_greater_part_here());
}

TEST(Quorum, AnAdoptedRoundThatMayNotHaveBeenEstablishedNeedsAllButTheLostNode) {
  Quorum quorum;
  quorum.adopt(4, 0);
  quorum.seat(1, "b");
  quorum.seat(2, "c");
  EXPECT_FALSE(quorum.is_greater_part_here());
  quorum.seat(3, "d");
  EXPECT_TRUE(quorum.is_greater_part_here());
  quorum.leave("d", false);
  EXPECT_FALSE(quorum.is_greater_part_here());
  quorum.leave("d", true);
  EXPECT_TRUE(quorum.is_greater_part_here());
}

TEST(Quorum, AnAdoptedRoundWhoseNodesHaveAllComeIsEstablished) {
  Quorum quorum;
  quorum.adopt(3, {});
  quorum.seat(0, "a");
  quorum.seat(1, "b");
  EXPECT_FALSE(quorum.is_greater_part_here());
  quorum.seat(2, "c");
  quorum.leave("c", false);
  EXPECT_TRUE(quorum.is_greater_part_here());
  quorum.leave("b", false);
  EXPECT_FALSE(quorum.is_greater_part_here());
}

}  // namespace
}  // namespace ddp::rendezvous
