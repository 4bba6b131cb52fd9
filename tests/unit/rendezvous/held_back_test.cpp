#include "rendezvous/membership/held_back.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <variant>

namespace ddp::rendezvous {
namespace {

TEST(HeldBack, LastMessageOfEachKindIsKept) {
  HeldBack held_back;
  EXPECT_TRUE(held_back.empty());
  held_back.add(RoundStarted{1});
  held_back.add(StoreOpened{1, 29500});
  held_back.add(RoundStarted{2});
  const auto messages = held_back.take();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(std::get<StoreOpened>(messages[0]).port, 29500);
  EXPECT_EQ(std::get<RoundStarted>(messages[1]).round, 2U);
  EXPECT_TRUE(held_back.empty());
}

TEST(HeldBack, WarningDoesNotReplaceTheRequestToStop) {
  HeldBack held_back;
  held_back.add(StopAsked{SIGUSR1, true});
  held_back.add(StopAsked{SIGTERM, false});
  held_back.add(StopAsked{SIGUSR1, true});
  EXPECT_EQ(std::get<StopAsked>(held_back.take().front()), (StopAsked{SIGTERM, false}));
}

}  // namespace
}  // namespace ddp::rendezvous
