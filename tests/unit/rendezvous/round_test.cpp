#include "ddp/round.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "rendezvous/round/term.hpp"

namespace ddp {
namespace {

TEST(RoundId, SurvivesItsText) {
  const struct {
    RoundId id;
    const char* text;
  } cases[] = {{{}, "0-0000000000000000-0"},
               {{1763723112, 0x9f3a17c2b4d8e6f0, 3}, "1763723112-9f3a17c2b4d8e6f0-3"},
               {{UINT64_MAX, UINT64_MAX, UINT32_MAX}, "18446744073709551615-ffffffffffffffff-4294967295"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(to_string(c.id), c.text);
    EXPECT_EQ(parse_round_id(c.text), c.id);
  }
}

TEST(RoundId, HasOnlyOneSpelling) {
  for (const char* text :
       {"", "-", "--", "1-9f3a17c2b4d8e6f0", "1-9f3a17c2b4d8e6f0-", "-9f3a17c2b4d8e6f0-1", "1-9f3a17c2b4d8e6f-1",
        "1-9F3A17C2B4D8E6F0-1", "1-9f3a17c2b4d8e6f00-1", "01-9f3a17c2b4d8e6f0-1", "1-9f3a17c2b4d8e6f0-01",
        "1-9f3a17c2b4d8e6f0-4294967296", "18446744073709551616-9f3a17c2b4d8e6f0-1", "+1-9f3a17c2b4d8e6f0-1",
        "1-9f3a17c2b4d8e6f0-1 ", " 1-9f3a17c2b4d8e6f0-1", "1-9f3a-17c2b4d8e6f0-1", "1--9f3a17c2b4d8e6f-1"}) {
    EXPECT_FALSE(parse_round_id(text)) << text;
  }
}

TEST(RoundId, OrdersByTermThenRandomThenNumber) {
  EXPECT_LT((RoundId{1, 9, 9}), (RoundId{2, 0, 0}));
  EXPECT_LT((RoundId{1, 1, 9}), (RoundId{1, 2, 0}));
  EXPECT_LT((RoundId{1, 1, 9}), (RoundId{1, 1, 10}));
}

TEST(Term, GrowsWithinASecondToo) {
  using namespace std::chrono_literals;
  const std::chrono::system_clock::time_point now{1763723112s};
  EXPECT_EQ(rendezvous::begin_term(now, 7), (RoundId{1763723112, 7, 0}));
  EXPECT_EQ(rendezvous::begin_term(now + 500ms, 7), (RoundId{1763723112, 0x80000000'00000007, 0}));
  EXPECT_LT(rendezvous::begin_term(now, UINT32_MAX), rendezvous::begin_term(now + 1us, 0));
  EXPECT_LT(rendezvous::begin_term(now + 999'999us, UINT32_MAX), rendezvous::begin_term(now + 1s, 0));
  EXPECT_NE(rendezvous::begin_term(), rendezvous::begin_term());
}

}  // namespace
}  // namespace ddp
