#include <ddp/progress.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using ddp::Progress;
using ddp::ProgressOptions;
using namespace std::chrono_literals;

// A clock that stands still until the test moves it, and a file that is no terminal.
class ProgressDisplay : public testing::Test {
 protected:
  ProgressDisplay() {
    options_.clock = [this] { return now_; };
  }
  ~ProgressDisplay() override { std::fclose(file_); }

  std::string written() {
    std::string text(static_cast<std::size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

  std::chrono::steady_clock::time_point now_{100s};
  std::FILE* file_ = std::tmpfile();
  ProgressOptions options_{file_, 10s, 0, true, {}};
};

TEST_F(ProgressDisplay, PrintsALineAtMostEverySoOftenAndOneAtTheEnd) {
  {
    Progress progress(0, options_);
    progress.begin(100);
    for (int step = 0; step < 35; ++step) {
      now_ += 1s;
      progress.step(20, 1.0);
    }
  }
  EXPECT_EQ(written(),
            "step   1/100   1 %  loss 1.0000, 20 samples/s, 1:39 left\n"
            "step  11/100  11 %  loss 1.0000, 20 samples/s, 1:29 left\n"
            "step  21/100  21 %  loss 1.0000, 20 samples/s, 1:19 left\n"
            "step  31/100  31 %  loss 1.0000, 20 samples/s, 1:09 left\n"
            "step  35/100  35 %  loss 1.0000, 20 samples/s, 1:05 left\n");
}

TEST_F(ProgressDisplay, PrintsALineEverySoManySteps) {
  options_.line_steps = 2;
  Progress progress(0, options_);
  progress.begin(14, 10);  // resumed after 10
  for (int step = 0; step < 4; ++step) {
    now_ += 1s;
    progress.step(8);
  }
  progress.print_line("done");
  progress.finish();
  EXPECT_EQ(written(), "step 12/14  85 %  8.0 samples/s, 0:02 left\nstep 14/14 100 %  8.0 samples/s\ndone\n");
}

TEST_F(ProgressDisplay, PrintsTheLastStepAtOnce) {
  Progress progress(0, options_);
  progress.begin(2);
  progress.step(0);
  progress.step(0);
  EXPECT_EQ(written(), "step 1/2  50 %\nstep 2/2 100 %\n");
}

TEST_F(ProgressDisplay, IsSilentOnOtherRanksAndWithoutLines) {
  options_.lines = false;
  {
    Progress other(1, options_);
    Progress without_lines(0, options_);
    for (Progress* progress : {&other, &without_lines}) {
      progress->begin(2);
      progress->step(1, 1.0);
      progress->finish();
      EXPECT_FALSE(progress->is_on_terminal());
    }
    other.print_line("not shown");
    without_lines.print_line("shown");
  }
  EXPECT_EQ(written(), "shown\n");
}

// What a terminal of 60 columns was sent.
TEST_F(ProgressDisplay, RedrawsABarOnATerminal) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(master, 0);
  ASSERT_EQ(::grantpt(master), 0);
  ASSERT_EQ(::unlockpt(master), 0);
  options_.file = std::fopen(::ptsname(master), "w");
  ASSERT_NE(options_.file, nullptr);
  const winsize size{24, 60, 0, 0};
  ASSERT_EQ(::ioctl(::fileno(options_.file), TIOCSWINSZ, &size), 0);
  {
    Progress progress(0, options_);
    EXPECT_TRUE(progress.is_on_terminal());
    progress.begin(4);
    progress.step(0, 0.5);  // drawn
    progress.step(0, 0.4);  // too soon
    progress.print_line("a line");
    now_ += 1s;
    progress.step(0, 0.25);   // drawn
    progress.step(0, 0.125);  // the last one
    progress.print_line("the end");
  }
  std::fclose(options_.file);
  // A terminal hands over its lines one by one, and none after the last writer has closed it.
  std::string shown;
  std::array<char, 4096> text{};
  for (ssize_t count = 0; (count = ::read(master, text.data(), text.size())) > 0;) {
    shown.append(text.data(), static_cast<std::size_t>(count));
  }
  ::close(master);
  EXPECT_EQ(shown,
            "\rstep 1/4  25 % [=======                       ] loss 0.5000\33[K"
            "\r\33[Ka line\r\n"
            "\rstep 2/4  50 % [===============               ] loss 0.4000\33[K"
            "\rstep 3/4  75 % [==============     ] loss 0.2500, 0:00 left\33[K"
            "\rstep 4/4 100 % [==============================] loss 0.1250\33[K\r\n"
            "the end\r\n");
}

}  // namespace
