#include "launcher/worker_group/summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Summary, SaysWhatWhereAndWhatToTry) {
  const Failure failure{5, {Ending::Kind::killed, SIGKILL, false}, 12min, 3, 7};
  EXPECT_EQ(failure_summary(failure, {"gpu17", 41822, 8, 3, "./train", "", {"step 4", "out of memory"}}),
            "error: rank 5 was killed by SIGKILL after 12 min; the other 7 ranks were stopped\n"
            "where: host gpu17, pid 41822, round 3, ./train\n"
            "its stderr ended with:\n"
            "  | step 4\n"
            "  | out of memory\n"
            "try:   `dmesg | grep -i oom` on gpu17: running out of memory ends a process this way\n");
}

TEST(Summary, CarriesTheWorkersOwnMessage) {
  const Failure failure{0, {Ending::Kind::exited, 1, false}, 1500ms, 0};
  const auto text = failure_summary(failure, {"h", 7, 1, 0, "train.py", "ValueError: no data", {}});
  EXPECT_THAT(text, HasSubstr("error: rank 0 ended with exit code 1 after 1.5 s\n"));
  EXPECT_THAT(text, HasSubstr("cause: ValueError: no data\n"));
  EXPECT_THAT(text, HasSubstr("--max-restarts=N"));
}

TEST(Summary, WhatToTryFitsTheEnding) {
  const FailureContext context{"h", 7, 2, 0, "./x", "", {"usage: x"}}, silent{"h", 7, 2, 0, "./x", "", {}};
  const auto ended = [](int code) { return Failure{0, {Ending::Kind::exited, code, false}, 1ms, 0}; };
  EXPECT_THAT(failure_summary(ended(1), context), HasSubstr("try:   read its stderr above"));
  EXPECT_THAT(failure_summary(ended(2), context), HasSubstr("wrong use"));
  EXPECT_THAT(failure_summary(ended(2), context), Not(HasSubstr("--max-restarts")));
  EXPECT_THAT(failure_summary(ended(1), silent), HasSubstr("wrote nothing to stderr"));
}

TEST(Summary, AProgramThatNeverRanHasNoPidAndNoTime) {
  const Failure failure{0, {Ending::Kind::not_started, ENOENT, false}, 1ms, 0};
  const auto text = failure_summary(failure, {"h", 0, 2, 0, "./x", "", {}});
  EXPECT_THAT(text, HasSubstr("could not be started: No such file"));
  EXPECT_THAT(text, Not(HasSubstr("after 1 ms")));
  EXPECT_THAT(text, Not(HasSubstr("pid")));
}

TEST(Summary, DescribesDurations) {
  EXPECT_EQ(describe_duration(7ms), "7 ms");
  EXPECT_EQ(describe_duration(3200ms), "3.2 s");
  EXPECT_EQ(describe_duration(30s), "30 s");
  EXPECT_EQ(describe_duration(12min), "12 min");
  EXPECT_EQ(describe_duration(2h + 59min + 59s), "2 h 59 min");
  EXPECT_EQ(describe_duration(999ms), "999 ms");
}

}  // namespace
}  // namespace ddp::launcher
