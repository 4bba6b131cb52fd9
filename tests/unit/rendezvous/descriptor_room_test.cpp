#include "base/descriptor_room.hpp"

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

TEST(DescriptorRoom, LeavesHalfOfTheLimitToThoseThatHaveSaidHello) {
  const struct {
    rlim_t limit;
    std::size_t silent, waiting;
  } cases[] = {{256, 32, 96}, {1'024, 128, 384}, {20'000, 1'024, 7'500}, {RLIM_INFINITY, 1'024, 16'384}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.limit);
    const auto room = descriptor_room_of(c.limit);
    EXPECT_EQ(room.silent, c.silent);
    EXPECT_EQ(room.waiting, c.waiting);
    EXPECT_LE(room.silent + room.waiting, c.limit / 2);
    EXPECT_LE(room.silent + room.waiting + room.met, c.limit);
  }
}

}  // namespace
}  // namespace ddp::base
