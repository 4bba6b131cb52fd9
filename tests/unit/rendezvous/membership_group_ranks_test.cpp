#include "rendezvous/membership/group_ranks.hpp"

#include <gtest/gtest.h>

#include <iterator>

namespace ddp::rendezvous {
namespace {

TEST(NaturalOrder, ComparesNumbersAsNumbers) {
  const char* ordered[] = {"a", "gpu2", "gpu10", "gpu10-a", "gpu11", "node1", "node02", "node3"};
  for (std::size_t i = 0; i + 1 < std::size(ordered); ++i) {
    EXPECT_TRUE(is_before_naturally(ordered[i], ordered[i + 1])) << ordered[i];
    EXPECT_FALSE(is_before_naturally(ordered[i + 1], ordered[i])) << ordered[i];
  }
  EXPECT_FALSE(is_before_naturally("x7", "x7"));
}

}  // namespace
}  // namespace ddp::rendezvous
