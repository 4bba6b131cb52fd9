#include "worker_runtime/backends/cpu/one_host/way_times.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

namespace ddp::cpu_backend {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kBytes = 1u << 20;
constexpr nanoseconds kFast{100'000}, kSlow{500'000};

// A host whose ways take as long as `of` says.
class Host {
 public:
  std::map<Way, nanoseconds> of{{Way::cached, kSlow}, {Way::streamed, kSlow}, {Way::read, kSlow}};

  // How often each way was taken in so many calls.
  std::map<Way, int> call(int calls, bool may_read = true) {
    std::map<Way, int> taken;
    for (int i = 0; i < calls; ++i) {
      const Way now = next_;
      next_ = times_.next(may_read);
      times_.took(now, of.at(now), kBytes);
      ++taken[now];
    }
    return taken;
  }

 private:
  WayTimes times_;
  Way next_ = Way::cached;  // as ranks agree on it one call ahead
};

class EachWay : public ::testing::TestWithParam<Way> {};

TEST_P(EachWay, IsFoundToBeTheFastestOneInEightCalls) {
  Host host;
  host.of[GetParam()] = kFast;
  host.call(7);
  EXPECT_EQ(host.call(10)[GetParam()], 10);
}

TEST_P(EachWay, IsFoundAgainOnceItHasBecomeTheFastest) {
  for (const Way before : {Way::cached, Way::streamed, Way::read}) {
    if (before == GetParam()) continue;
    Host host;
    host.of[before] = kFast;
    host.call(10'000);
    host.of[before] = kSlow * 2;
    host.of[GetParam()] = kFast;
    host.call(300);  // what was the fastest may not be tried again sooner, and the third is tried first
    EXPECT_GT(host.call(100)[GetParam()], 90) << static_cast<int>(before);
  }
}

INSTANTIATE_TEST_SUITE_P(, EachWay, ::testing::Values(Way::cached, Way::streamed, Way::read));

TEST(WayTimes, OthersAreTriedOneCallIn256InTheLongRun) {
  Host host;
  host.of[Way::streamed] = kFast;
  host.call(1'000);
  auto taken = host.call(25'600);
  EXPECT_NEAR(taken[Way::cached], 50, 1);
  EXPECT_NEAR(taken[Way::read], 50, 1);
}

TEST(WayTimes, ReadingIsNoWayWhereItMayNotBe) {
  Host host;
  host.of[Way::read] = kFast;
  EXPECT_EQ(host.call(1'000, false)[Way::read], 0);
}

TEST(WayTimes, ACallThatTookLongForOnceChangesNothing) {
  Host host;
  host.of[Way::read] = kFast;
  host.of[Way::cached] = host.of[Way::streamed] = kFast * 3 / 2;
  host.call(100);
  host.of[Way::read] = kSlow * 100;
  host.call(1);
  host.of[Way::read] = kFast;
  EXPECT_GT(host.call(100)[Way::read], 90);
}

TEST(WayTimes, CallsOfSeveralSizesAreComparedByTheByte) {
  WayTimes times;
  for (int i = 0; i < 4; ++i) times.next(false);
  times.took(Way::cached, kFast, kBytes);
  times.took(Way::streamed, 4 * kSlow, 64 * kBytes);
  EXPECT_EQ(times.next(false), Way::streamed);
}

}  // namespace
}  // namespace ddp::cpu_backend
