#include "launcher/guardian/ending_of_another.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <utility>

#include "base/pidfd.hpp"

namespace ddp::launcher::guardian {
namespace {

class EndingOfAnother : public ::testing::Test {
 protected:
  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::pause();
      ::_exit(3);
    }
    pidfd_ = base::open_pidfd(pid_);
  }
  void end_by(int signal_number) {
    ::kill(pid_, signal_number);
    pollfd wait{pidfd_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  }

  pid_t pid_ = 0;
  base::UniqueFd pidfd_;
};

TEST_F(EndingOfAnother, IsToldUntilItsParentHasReapedIt) {
  // None that a sanitizer handles.
  for (const int signal_number : {SIGKILL, SIGUSR1, SIGTERM}) {
    start();
    EXPECT_EQ(wait_status_of(pidfd_.get(), pid_), std::nullopt) << "it runs";
    end_by(signal_number);
    const auto status = wait_status_of(pidfd_.get(), pid_);
    ASSERT_TRUE(status);
    EXPECT_TRUE(WIFSIGNALED(*status));
    EXPECT_EQ(WTERMSIG(*status), signal_number);
    ::waitpid(pid_, nullptr, 0);
  }
}

TEST_F(EndingOfAnother, IsToldAfterThatByNewKernelsOnly) {
  start();
  end_by(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  const auto status = wait_status_of(pidfd_.get(), pid_);
  if (!status) GTEST_SKIP() << "this needs Linux 6.15";
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
}

TEST_F(EndingOfAnother, IsNotThatOfALaterProcessWithItsNumber) {
  start();
  const pid_t first = pid_;
  const auto pidfd_of_first = std::move(pidfd_);
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  start();
  end_by(SIGTERM);  // it is a zombie, as the later one would be
  const auto status = wait_status_of(pidfd_of_first.get(), pid_);
  EXPECT_TRUE(!status || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL));
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace
}  // namespace ddp::launcher::guardian
