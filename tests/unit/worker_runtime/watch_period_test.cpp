#include <gtest/gtest.h>

#include "worker_runtime/backends/nccl/watch.hpp"

namespace ddp::nccl_backend {
namespace {

TEST(WatchPeriod, GrowsWhileNothingHappensAndNoFurther) {
  WatchPeriod period;
  EXPECT_EQ(period.get(), WatchPeriod::kMin);
  period.take(Look::unchanged);
  EXPECT_EQ(period.get(), 2 * WatchPeriod::kMin);
  for (int i = 0; i < 100; ++i) period.take(Look::unchanged);
  EXPECT_EQ(period.get(), WatchPeriod::kMax);
}

TEST(WatchPeriod, IsShortAgainOnceSomethingHappens) {
  for (const Look look : {Look::progressed, Look::idle, Look::awaited}) {
    WatchPeriod period;
    for (int i = 0; i < 10; ++i) period.take(Look::unchanged);
    period.take(look);
    EXPECT_EQ(period.get(), WatchPeriod::kMin);
  }
}

}  // namespace
}  // namespace ddp::nccl_backend
