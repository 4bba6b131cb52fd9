#include "worker_runtime/metrics/progress_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>

namespace ddp::metrics {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const ProgressState kHalf{
    .done = 50, .total = 100, .samples_per_second = 1234, .loss = 0.0812, .left = std::chrono::seconds(42)};

TEST(ProgressBar, FitsAnyWidth) {
  for (std::size_t width = 0; width <= 200; ++width) ASSERT_LE(progress_bar(kHalf, width).size(), width);
  EXPECT_EQ(progress_bar(kHalf, 200), "step  50/100  50 % [" + std::string(20, '=') + std::string(20, ' ') +
                                          "] loss 0.0812, 1234 samples/s, 0:42 left");
  EXPECT_THAT(progress_bar(kHalf, 75), HasSubstr(" ] loss"));
  EXPECT_EQ(progress_bar(kHalf, 65), "step  50/100  50 % loss 0.0812, 1234 samples/s, 0:42 left");
  EXPECT_EQ(progress_bar(kHalf, 25), "step  50/100  50 % loss 0");
}

TEST(ProgressBar, IsFullAtTheEndOnly) {
  ProgressState state{.done = 999, .total = 1000};
  EXPECT_THAT(progress_bar(state, 79), HasSubstr(" 99 % ["));
  EXPECT_THAT(progress_bar(state, 79), HasSubstr("= ]"));
  state.done = 1000;
  EXPECT_THAT(progress_bar(state, 79), HasSubstr("100 % [========================================]"));
  state.done = 1001;
  EXPECT_THAT(progress_bar(state, 79), HasSubstr("100 % [========================================]"));
}

TEST(ProgressBar, IsLeftOutIfTheTotalIsNotKnown) {
  EXPECT_EQ(progress_bar({.done = 7, .samples_per_second = 3.25}, 79), "step 7 3.2 samples/s");
  EXPECT_EQ(progress_line({.done = 7}), "step 7");
}

TEST(ProgressLine, HasTheLabelInPlaceOfTheStep) {
  EXPECT_EQ(progress_line({.label = "epoch 3/30", .done = 1, .total = 10, .loss = 2}), "epoch 3/30  10 %  loss 2.0000");
}

TEST(ProgressLine, TellsTimesOfAnyLength) {
  const struct {
    std::chrono::seconds left;
    const char* text;
  } cases[] = {{0s, "0:00 left"},
               {59s, "0:59 left"},
               {3599s, "59:59 left"},
               {3600s, "1:00:00 left"},
               {24h + 1s, "1 d 0:00:01 left"}};
  for (const auto& each : cases) {
    EXPECT_EQ(progress_line({.done = 1, .total = 2, .left = each.left}), std::string("step 1/2  50 %  ") + each.text);
  }
}

}  // namespace
}  // namespace ddp::metrics
