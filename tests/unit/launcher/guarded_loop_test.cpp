#include "launcher/agent/guarded_loop.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>

namespace ddp::launcher {
namespace {

class GuardedLoop : public ::testing::Test {
 protected:
  void run(const auto& what, bool has_job_run) {
    run_guarded(
        what, [has_job_run] { return has_job_run; }, [this] { ++logs_; });
  }

  int logs_ = 0;
};

TEST_F(GuardedLoop, ThatThrowsWhileTheJobRunsWritesTheLogAndSaysSo) {
  try {
    run([] { throw std::invalid_argument("of the loop"); }, true);
    FAIL() << "nothing was thrown";
  } catch (const RunningJobError& error) {
    EXPECT_EQ(error.what(), std::string("of the loop"));
  }
  EXPECT_EQ(logs_, 1);
}

TEST_F(GuardedLoop, ThatThrowsBeforeTheJobPassesTheExceptionOn) {
  EXPECT_THROW(run([] { throw std::invalid_argument("of the start"); }, false), std::invalid_argument);
  EXPECT_THROW(run([] { throw std::bad_alloc(); }, false), std::bad_alloc);
  EXPECT_EQ(logs_, 0);
}

TEST_F(GuardedLoop, ThatEndsWritesNoLogHere) {
  run([] {}, true);
  EXPECT_EQ(logs_, 0);
}

}  // namespace
}  // namespace ddp::launcher
