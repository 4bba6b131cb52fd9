#include "worker_runtime/engine/reducer.hpp"

#include "ddp/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using ddp::Sync;
using ddp::gradient_engine::BucketRange;
using ddp::gradient_engine::Reducer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Parameters a to e in three buckets: {e}, {d, c}, {b, a}.
Reducer five_parameters() { return Reducer({"a", "b", "c", "d", "e"}, {{4}, {3, 2}, {1, 0}}); }

template <class Call>
std::string gradient_error(Call call) {
  try {
    call();
  } catch (const ddp::GradientError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Reducer, LaunchesEachBucketAsItFills) {
  Reducer reducer = five_parameters();
  EXPECT_TRUE(reducer.begin_step(Sync::on));
  EXPECT_EQ(reducer.ready(4), (BucketRange{0, 1}));
  EXPECT_EQ(reducer.ready(3), (BucketRange{1, 1}));
  EXPECT_EQ(reducer.ready(2), (BucketRange{1, 2}));
  EXPECT_EQ(reducer.ready(0), (BucketRange{2, 2}));
  EXPECT_EQ(reducer.ready(1), (BucketRange{2, 3}));
  const Reducer::Rest rest = reducer.finish();
  EXPECT_EQ(rest.launches, (BucketRange{3, 3}));
  EXPECT_THAT(rest.missing, IsEmpty());
}

TEST(Reducer, HoldsAFullBucketBackUntilThoseBeforeItAreFull) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::on);
  for (const std::size_t parameter : {0, 1, 2, 3}) EXPECT_EQ(reducer.ready(parameter), (BucketRange{0, 0}));
  EXPECT_EQ(reducer.ready(4), (BucketRange{0, 3}));
}

TEST(Reducer, LaunchesInBucketOrderWhateverTheOrderOfReadiness) {
  std::mt19937 random(1);  // NOLINT: the same orders in every run
  std::vector<std::size_t> order(5);
  std::iota(order.begin(), order.end(), 0U);
  Reducer reducer = five_parameters();
  for (int step = 0; step < 200; ++step) {
    std::shuffle(order.begin(), order.end(), random);
    const std::size_t used_count = random() % (order.size() + 1);
    reducer.begin_step(Sync::on);
    std::size_t next = 0;
    for (std::size_t i = 0; i < used_count; ++i) {
      const BucketRange launch = reducer.ready(order[i]);
      ASSERT_EQ(launch.begin, next);
      next = launch.end;
    }
    const Reducer::Rest rest = reducer.finish();
    ASSERT_EQ(rest.launches, (BucketRange{next, 3}));
    std::vector<std::size_t> missing(order.begin() + static_cast<std::ptrdiff_t>(used_count), order.end());
    std::sort(missing.begin(), missing.end());
    ASSERT_EQ(rest.missing, missing);
  }
}

TEST(Reducer, LaunchesTheRestWhereAParameterIsMissing) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::on);
  reducer.ready(4);
  reducer.ready(2);
  reducer.ready(0);
  reducer.ready(1);
  const Reducer::Rest rest = reducer.finish();
  EXPECT_EQ(rest.launches, (BucketRange{1, 3}));
  EXPECT_THAT(rest.missing, ElementsAre(3U));
}

TEST(Reducer, RefusesAParameterThatIsReadyTwiceAndKeepsTheStep) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::on);
  reducer.ready(3);
  EXPECT_THAT(gradient_error([&] { reducer.ready(3); }),
              HasSubstr("parameter d (index 3) is ready for the second time"));
  reducer.ready(4);
  EXPECT_EQ(reducer.ready(2), (BucketRange{1, 2})) << "the second ready(3) was counted";
}

TEST(Reducer, RefusesAnIndexOutOfRange) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::on);
  EXPECT_THROW(reducer.ready(5), ddp::InvalidArgument);
  EXPECT_THROW(reducer.ready(static_cast<std::size_t>(-1)), ddp::InvalidArgument);
}

TEST(Reducer, RefusesCallsOutOfTurn) {
  Reducer reducer = five_parameters();
  EXPECT_THAT(gradient_error([&] { reducer.ready(0); }), HasSubstr("ready() is called outside a step"));
  EXPECT_THAT(gradient_error([&] { reducer.finish(); }), HasSubstr("finish() is called outside a step"));
  reducer.begin_step(Sync::on);
  EXPECT_THAT(gradient_error([&] { reducer.begin_step(Sync::on); }), HasSubstr("the one before it is unfinished"));
  reducer.finish();
  EXPECT_THAT(gradient_error([&] { reducer.finish(); }), HasSubstr("finish() is called outside a step"));
}

TEST(Reducer, AWindowStartsAfterASynchronisedStepOnly) {
  Reducer reducer = five_parameters();
  EXPECT_TRUE(reducer.begin_step(Sync::off));
  EXPECT_EQ(reducer.ready(4), (BucketRange{0, 0})) << "launched without synchronisation";
  EXPECT_EQ(reducer.finish().launches, (BucketRange{0, 0}));
  EXPECT_FALSE(reducer.begin_step(Sync::off));
  reducer.finish();
  EXPECT_FALSE(reducer.begin_step(Sync::on));
  reducer.finish();
  EXPECT_TRUE(reducer.begin_step(Sync::on));
}

TEST(Reducer, AParameterUsedInAnyStepOfTheWindowIsNotMissing) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::off);
  reducer.ready(4);
  reducer.ready(3);
  reducer.finish();
  reducer.begin_step(Sync::off);
  reducer.ready(4);  // once in each step is no second time
  reducer.ready(1);
  reducer.finish();
  reducer.begin_step(Sync::on);
  EXPECT_EQ(reducer.ready(2), (BucketRange{0, 0}));
  const Reducer::Rest rest = reducer.finish();
  EXPECT_EQ(rest.launches, (BucketRange{0, 3}));
  EXPECT_THAT(rest.missing, ElementsAre(0U));

  reducer.begin_step(Sync::on);
  EXPECT_THAT(reducer.finish().missing, ElementsAre(0U, 1U, 2U, 3U, 4U)) << "the window before it is over";
}

TEST(Reducer, StartsAnewAfterAnAbandonedStep) {
  Reducer reducer = five_parameters();
  reducer.begin_step(Sync::on);
  reducer.ready(4);
  reducer.abandon();
  EXPECT_TRUE(reducer.begin_step(Sync::on));
  EXPECT_EQ(reducer.ready(4), (BucketRange{0, 1}));
}

}  // namespace
