#include "worker_runtime/backends/cpu/one_host/algorithm_times.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

namespace ddp::cpu_backend {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kBytes = 1u << 20;
constexpr nanoseconds kFast{100'000}, kSlow{500'000};

// A host whose algorithms take as long as `of` says.
class Host {
 public:
  std::map<Algorithm, nanoseconds> of{
      {Algorithm::cached, kSlow}, {Algorithm::streamed, kSlow}, {Algorithm::read, kSlow}};

  // How often each algorithm was used in so many calls.
  std::map<Algorithm, int> call(int calls, bool may_read = true) {
    std::map<Algorithm, int> taken;
    for (int i = 0; i < calls; ++i) {
      const Algorithm now = next_;
      next_ = times_.next(may_read);
      times_.took(now, of.at(now), kBytes);
      ++taken[now];
    }
    return taken;
  }

 private:
  AlgorithmTimes times_;
  Algorithm next_ = Algorithm::cached;  // as ranks agree on it one call ahead
};

class EachAlgorithm : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EachAlgorithm, IsFoundToBeTheFastestOneInEightCalls) {
  Host host;
  host.of[GetParam()] = kFast;
  host.call(7);
  EXPECT_EQ(host.call(10)[GetParam()], 10);
}

TEST_P(EachAlgorithm, IsFoundAgainOnceItHasBecomeTheFastest) {
  for (const Algorithm before : {Algorithm::cached, Algorithm::streamed, Algorithm::read}) {
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

INSTANTIATE_TEST_SUITE_P(, EachAlgorithm, ::testing::Values(Algorithm::cached, Algorithm::streamed, Algorithm::read));

TEST(AlgorithmTimes, OthersAreTriedOneCallIn256InTheLongRun) {
  Host host;
  host.of[Algorithm::streamed] = kFast;
  host.call(1'000);
  auto taken = host.call(25'600);
  EXPECT_NEAR(taken[Algorithm::cached], 50, 1);
  EXPECT_NEAR(taken[Algorithm::read], 50, 1);
}

TEST(AlgorithmTimes, PeersAreNotReadIfTheyMayNotBe) {
  Host host;
  host.of[Algorithm::read] = kFast;
  EXPECT_EQ(host.call(1'000, false)[Algorithm::read], 0);
}

TEST(AlgorithmTimes, ACallThatTookLongForOnceChangesNothing) {
  Host host;
  host.of[Algorithm::read] = kFast;
  host.of[Algorithm::cached] = host.of[Algorithm::streamed] = kFast * 3 / 2;
  host.call(100);
  host.of[Algorithm::read] = kSlow * 100;
  host.call(1);
  host.of[Algorithm::read] = kFast;
  EXPECT_GT(host.call(100)[Algorithm::read], 90);
}

TEST(AlgorithmTimes, CallsOfSeveralSizesAreComparedByTheByte) {
  AlgorithmTimes times;
  for (int i = 0; i < 4; ++i) times.next(false);
  times.took(Algorithm::cached, kFast, kBytes);
  times.took(Algorithm::streamed, 4 * kSlow, 64 * kBytes);
  EXPECT_EQ(times.next(false), Algorithm::streamed);
}

}  // namespace
}  // namespace ddp::cpu_backend
