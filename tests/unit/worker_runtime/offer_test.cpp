// The choice of the rank whose elastic state all ranks take.
#include "worker_runtime/elastic/offer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace ddp::elastic {
namespace {

constexpr Offer kNothing{};

// A rank that made `count` commits up to `round`, and was last part of round `last_synced`.
Offer commits(std::uint32_t round, std::uint64_t count, std::uint32_t last_synced) {
  return {.has_commit = 1, .round = {1, 1, round}, .count = count, .last_synced = {1, 1, last_synced}};
}

struct Case {
  const char* what;
  std::vector<Offer> offers;
  int want;
};

void expect_sources(const std::vector<Case>& cases, bool on_gpus) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(source_of(c.offers, on_gpus), c.want);
  }
}

TEST(Offer, OnHostsTheNewestCommitIsTheSource) {
  expect_sources({{"no commit anywhere", {kNothing, kNothing}, 0},
                  {"a commit and a replacement", {kNothing, commits(1, 1, 1)}, 1},
                  {"more commits", {commits(1, 1, 1), commits(1, 3, 1), commits(1, 2, 1)}, 1},
                  {"a later round with fewer commits", {commits(1, 9, 1), commits(2, 1, 2)}, 1},
                  {"equal commits", {commits(1, 1, 1), commits(1, 2, 1), commits(1, 2, 1)}, 1}},
                 false);
}

TEST(Offer, OnGpusTheOldestCommitOfTheLastRoundIsTheSource) {
  expect_sources({{"no commit anywhere", {kNothing, kNothing}, 0},
                  {"a commit and a replacement", {kNothing, commits(1, 1, 1)}, 1},
                  {"fewer commits", {commits(1, 3, 1), commits(1, 1, 1), commits(1, 2, 1)}, 1},
                  {"a replacement and two ranks", {kNothing, commits(1, 2, 1), commits(1, 1, 1)}, 2},
                  {"no commit since the sync", {commits(2, 4, 2), commits(1, 3, 2)}, 1},
                  {"an older round with fewer commits", {commits(1, 1, 1), commits(2, 5, 2), commits(2, 4, 2)}, 2},
                  {"an older round with more commits", {commits(2, 5, 2), commits(1, 9, 1), commits(2, 4, 2)}, 2},
                  {"equal commits", {commits(1, 2, 1), commits(1, 1, 1), commits(1, 1, 1)}, 1}},
                 true);
}

TEST(Offer, WordsCarryEveryField) {
  const Offer sent{1, {2, 3, 4}, 5, 6, 7, 8, {9, 10, 11}};
  const auto words = sent.words();
  const Offer received = Offer::from(words.data());
  EXPECT_EQ(received.has_commit, 1u);
  EXPECT_EQ(received.round, (RoundId{2, 3, 4}));
  EXPECT_EQ(received.count, 5u);
  EXPECT_EQ(received.entries, 6u);
  EXPECT_EQ(received.bytes, 7u);
  EXPECT_EQ(received.layout, 8u);
  EXPECT_EQ(received.last_synced, (RoundId{9, 10, 11}));
}

}  // namespace
}  // namespace ddp::elastic
