#include "rendezvous/store/memory_budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ddp::store {
namespace {

TEST(StoreMemory, HasRoomUpToItsLimit) {
  MemoryBudget memory(100);
  memory.add(60);
  EXPECT_TRUE(memory.has_room(40));
  EXPECT_FALSE(memory.has_room(41));
  EXPECT_NO_THROW(memory.require_room(40));
  try {
    memory.require_room(41);
    ADD_FAILURE() << "there is room";
  } catch (const StoreFull& full) {
    EXPECT_STREQ(full.what(), "the store is full: it holds 60 of 100 bytes, and 41 more are needed");
    EXPECT_EQ(full.bytes_needed(), 41u);
  }
  memory.add(50);  // what has come already counts too
  EXPECT_FALSE(memory.has_room(0));
  memory.remove(110);
  EXPECT_TRUE(memory.has_room(100));
}

TEST(StoreMemory, SaysOnceHowMuchWasReturned) {
  MemoryBudget memory(1000);
  memory.add(500);
  memory.remove(300);
  EXPECT_EQ(memory.take_returned_bytes(301), 0u);
  EXPECT_EQ(memory.take_returned_bytes(300), 300u);
  EXPECT_EQ(memory.take_returned_bytes(1), 0u);
  memory.add(100);
  memory.remove(200);
  EXPECT_EQ(memory.take_returned_bytes(1), 200u);
}

TEST(StoreMemory, ConnectionThatHoldsTheMostIsClosed) {
  constexpr ConnectionId kAsker{1}, kOther{2}, kThird{3};
  constexpr std::size_t kLittle = kHoldingBytesKept, kMuch = 10 * kHoldingBytesKept;
  const struct {
    const char* what;
    std::size_t asker;
    std::vector<Holding> others;
    std::optional<ConnectionId> want;
  } cases[] = {
      {"nobody else", kLittle, {}, std::nullopt},
      {"another holds more", kLittle, {{kOther, kMuch}}, kOther},
      {"two others hold more", kLittle, {{kOther, kMuch}, {kThird, kMuch + 1}}, kThird},
      {"the asker holds more", kMuch + 1, {{kOther, kMuch}}, std::nullopt},
      {"both hold the same", kMuch, {{kOther, kMuch}}, std::nullopt},
      {"nobody holds much", 1, {{kOther, kLittle}, {kThird, 2}}, std::nullopt},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(connection_to_close({kAsker, c.asker}, c.others), c.want);
  }
}

// Attackers hold as much as they can; clients that hold little come and go among them.
TEST(StoreMemory, ClientsThatHoldLittleAreNeverClosedForAttackers) {
  constexpr std::size_t kTotal = 1u << 30, kStored = 256u << 20;
  constexpr std::uint64_t kAttackers = 20, kClients = 200;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    MemoryBudget memory(kTotal);
    memory.add(kStored);
    std::map<ConnectionId, std::size_t> held;
    std::size_t closed = 0;
    for (int step = 0; step < 3000; ++step) {
      const ConnectionId who{random() % (kAttackers + kClients)};
      const bool is_attacker = static_cast<std::uint64_t>(who) < kAttackers;
      if (!is_attacker && random() % 4 == 0) {
        memory.remove(std::exchange(held[who], 0));
        continue;
      }
      const std::size_t more = is_attacker ? random() % (64u << 20) : random() % (kHoldingBytesKept - held[who] + 1);
      while (!memory.has_room(more)) {
        std::vector<Holding> others;
        for (const auto& [connection, bytes] : held)
          if (connection != who) others.push_back({connection, bytes});
        const auto chosen = connection_to_close({who, held[who] + more}, others).value_or(who);
        ASSERT_LT(static_cast<std::uint64_t>(chosen), kAttackers);
        memory.remove(std::exchange(held[chosen], 0));
        ++closed;
        if (chosen == who) break;
      }
      if (!memory.has_room(more)) continue;
      memory.add(more);
      held[who] += more;
      ASSERT_LE(memory.used_bytes(), kTotal);
    }
    EXPECT_GT(closed, 0u);
  }
}

}  // namespace
}  // namespace ddp::store
