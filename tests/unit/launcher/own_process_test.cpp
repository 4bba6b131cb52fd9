#include "launcher/agent/own_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>

namespace ddp::launcher {
namespace {

class SignalsToTakeIn : public ::testing::Test {
 protected:
  static void ignore(int number) { ::signal(number, SIG_IGN); }
  ~SignalsToTakeIn() override {
    for (const int number : {SIGUSR1, SIGUSR2, SIGHUP, SIGTERM}) ::signal(number, SIG_DFL);
  }

  static bool has(bool is_in_step, int number) {
    const auto set = signals_to_take_in({SIGTERM, SIGHUP}, {SIGUSR1}, is_in_step);
    return ::sigismember(&set, number) == 1;
  }
};

TEST_F(SignalsToTakeIn, WhatWasIgnoredAtTheStartStaysSo) {
  EXPECT_TRUE(has(false, SIGUSR1));
  EXPECT_TRUE(has(false, SIGHUP));
  EXPECT_TRUE(has(false, SIGCHLD));
  ignore(SIGUSR1);
  ignore(SIGHUP);
  EXPECT_FALSE(has(false, SIGUSR1));
  EXPECT_FALSE(has(false, SIGHUP));
}

TEST_F(SignalsToTakeIn, InAStepAWarningIsTakenInAlsoByTheWorkerOfAnotherDdprunWhichIgnoresIt) {
  for (const int number : {SIGUSR1, SIGUSR2, SIGHUP}) ignore(number);
  EXPECT_TRUE(has(true, SIGUSR1));
  EXPECT_FALSE(has(true, SIGUSR2)) << "it is not passed on";
  EXPECT_FALSE(has(true, SIGHUP));
}

}  // namespace
}  // namespace ddp::launcher
