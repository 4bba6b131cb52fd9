#include "worker_runtime/core/operation/group_status.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "ddp/error.hpp"
#include "worker_runtime/core/failure/failure_listener.hpp"

namespace ddp::core {
namespace {

Verdict timeout_of(const std::string& message) { return {Verdict::Kind::timeout, message, {1}}; }

template <class Call>
std::string aborted_by(const Call& call) {
  try {
    call();
  } catch (const AbortedError& error) {
    return error.what();
  }
  return "no AbortedError";
}

TEST(GroupStatus, FirstFailureAndFirstVerdictCount) {
  GroupStatus status;
  EXPECT_NO_THROW(status.throw_if_failed());
  EXPECT_TRUE(status.fail({.cause = Cause::timed_out, .what = "the first"}));
  EXPECT_FALSE(status.fail({.cause = Cause::aborted, .what = "the second"}));
  EXPECT_FALSE(status.give_up(timeout_of("the third")));
  EXPECT_EQ(status.failure()->what, "the first");
  EXPECT_TRUE(status.has_failed());
  EXPECT_FALSE(status.has_verdict());
  status.set_verdict(timeout_of("late"));
  status.set_verdict(timeout_of("later"));
  EXPECT_THROW(status.throw_if_failed(), TimeoutError);
  EXPECT_EQ(aborted_by([&] { status.throw_if_failed(); }), "the process group is of no further use: late");
}

TEST(GroupStatus, GivesUpInOneStep) {
  GroupStatus status;
  EXPECT_TRUE(status.give_up(timeout_of("late")));
  EXPECT_FALSE(status.give_up(timeout_of("later")));
  EXPECT_FALSE(status.fail({}));
  EXPECT_TRUE(status.has_failed());
  EXPECT_TRUE(status.has_verdict());
  EXPECT_EQ(aborted_by([&] { status.throw_unusable(); }), "the process group is of no further use: late");
}

TEST(GroupStatus, ThrowsOnlyOnceItHasTheVerdict) {
  GroupStatus status;
  status.fail({});
  std::thread judge([&] { status.set_verdict(timeout_of("late")); });
  EXPECT_THROW(status.throw_failure(), TimeoutError);
  judge.join();
}

TEST(FailureListener, HearsTheReasonOnceWheneverItComes) {
  FailureListener listener;
  std::string heard;
  const auto hear = [&](const std::string& reason) { heard += reason + ";"; };
  listener.set(hear);
  listener.tell("a rank ended");
  EXPECT_EQ(heard, "a rank ended;");
  listener.set(hear);  // told at once
  EXPECT_EQ(heard, "a rank ended;a rank ended;");
}

TEST(FailureListener, IsNotCalledOnceItIsTakenAway) {
  FailureListener listener;
  bool is_called = false;
  listener.set([&](const std::string&) { is_called = true; });
  listener.set({});
  listener.tell("a rank ended");
  EXPECT_FALSE(is_called);
}

}  // namespace
}  // namespace ddp::core
