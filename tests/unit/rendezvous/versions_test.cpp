#include "rendezvous/membership/versions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;

std::variant<int, Refused> choice(const VersionRange& node, const VersionRange& endpoint, bool has_round = false) {
  Hello hello;
  hello.versions = node;
  hello.host_name = "gpu17";
  if (has_round) hello.held.emplace();
  return choose_version(hello, endpoint, "ddp-rendezvous");
}

TEST(Versions, HighestThatBothSpeakIsChosen) {
  constexpr int kMost = std::numeric_limits<int>::max(), kLeast = std::numeric_limits<int>::min();
  const struct {
    const char* what;
    VersionRange node, endpoint;
    int want;
  } cases[] = {{"equal, one version", {1, 1}, {1, 1}, 1},
               {"equal", {2, 4}, {2, 4}, 4},
               {"older node", {1, 2}, {2, 3}, 2},
               {"newer node", {3, 4}, {2, 3}, 3},
               {"node within the endpoint's", {2, 3}, {1, 9}, 3},
               {"endpoint within the node's", {1, 9}, {2, 3}, 3},
               {"huge", {1, kMost}, {1, 3}, 3},
               {"negative", {kLeast, 2}, {1, 3}, 2}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto version = choice(c.node, c.endpoint);
    ASSERT_TRUE(std::holds_alternative<int>(version));
    EXPECT_EQ(std::get<int>(version), c.want);
  }
}

TEST(Versions, WithoutACommonOneTheOlderSideIsToBeUpgraded) {
  const auto older = std::get<Refused>(choice({1, 2}, {3, 4}));
  EXPECT_EQ(older.what,
            "ddprun on host gpu17 speaks versions 1 to 2 of the control channel's protocol, ddp-rendezvous at the "
            "endpoint speaks versions 3 to 4: the node's ddprun is too old");
  EXPECT_EQ(older.try_this, "upgrade ddprun on host gpu17");
  const auto newer = std::get<Refused>(choice({3, 3}, {1, 2}));
  EXPECT_EQ(newer.what,
            "ddprun on host gpu17 speaks version 3 of the control channel's protocol, ddp-rendezvous at the endpoint "
            "speaks versions 1 to 2: the endpoint's ddp-rendezvous is too old");
  EXPECT_EQ(newer.try_this, "upgrade ddp-rendezvous at the endpoint");
}

TEST(Versions, RangesThatAreNoneAreRefused) {
  constexpr int kMost = std::numeric_limits<int>::max(), kLeast = std::numeric_limits<int>::min();
  for (const auto& range : {VersionRange{3, 1}, VersionRange{1, 0}, VersionRange{kMost, kLeast}}) {
    const auto refused = std::get<Refused>(choice(range, {1, 3}));
    EXPECT_THAT(refused.what, HasSubstr("is no range"));
    EXPECT_THAT(refused.try_this, HasSubstr("gpu17"));
  }
  EXPECT_EQ(std::get<Refused>(choice({-5, -1}, {1, 3})).try_this, "upgrade ddprun on host gpu17");
  EXPECT_EQ(std::get<Refused>(choice({kMost, kMost}, {1, 3})).try_this, "upgrade ddp-rendezvous at the endpoint");
}

// The old daemon may be brought back.
TEST(Versions, NodeThatHasARoundMayComeAgain) {
  EXPECT_FALSE(std::get<Refused>(choice({1, 1}, {2, 2})).is_round_unknown);
  EXPECT_TRUE(std::get<Refused>(choice({1, 1}, {2, 2}, true)).is_round_unknown);
  EXPECT_TRUE(std::get<Refused>(choice({3, 3}, {2, 2}, true)).is_round_unknown);
  EXPECT_TRUE(std::get<Refused>(choice({3, 1}, {2, 2}, true)).is_round_unknown);
}

}  // namespace
}  // namespace ddp::rendezvous
