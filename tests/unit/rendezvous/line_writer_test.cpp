#include "base/line_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kSoon{60};  // only a failing test waits this long

class Lines : public ::testing::Test {
 protected:
  Lines() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
  }

  // All that the writer has to write, read while it does.
  std::string all_of(LineWriter& say) {
    std::string out;
    std::array<char, 65536> bytes{};
    ::fcntl(reading_.get(), F_SETFL, O_NONBLOCK);
    const auto deadline = std::chrono::steady_clock::now() + kSoon;
    while (std::chrono::steady_clock::now() < deadline) {
      const bool is_written = say.flush(0ms);
      for (ssize_t count = 0; (count = ::read(reading_.get(), bytes.data(), bytes.size())) > 0;)
        out.append(bytes.data(), static_cast<std::size_t>(count));
      if (is_written) return out;
      pollfd more{reading_.get(), POLLIN, 0};
      ::poll(&more, 1, 1);
    }
    return "not written";
  }

  UniqueFd reading_, writing_;
};

TEST_F(Lines, StayOneLineWhateverOthersHavePutIntoThem) {
  LineWriter say(writing_.get(), "x", "x: ");
  say("host a\nx: b\x1b[2J\xc2\x9b"
      "2J\xe2\x80\xa8 has left");
  EXPECT_EQ(all_of(say), "x: host a\\nx: b\\x1b[2J\\u009b2J\\u2028 has left\n");
}

TEST_F(Lines, HaveThePrefix) {
  LineWriter say(writing_.get(), "x", "x: ");
  say("one");
  say("two");
  EXPECT_EQ(all_of(say), "x: one\nx: two\n");
}

TEST_F(Lines, AreDroppedAndCountedWhereNobodyReads) {
  LineWriter say(writing_.get(), "x");
  const std::string line(1000, 'a');
  for (int i = 0; i < 3000; ++i) say(line);  // more than a pipe and the queue hold
  say("end");                                // dropped, too: the order says that it came later
  const auto written = all_of(say);
  const std::string word = "x: dropped ";
  const auto at = written.find(word);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(at % 1001, 0U) << "whole lines only";
  EXPECT_GT(at, LineWriter::kQueuedBytesMax / 2);
  EXPECT_EQ(std::stoul(written.substr(at + word.size())), 3001 - at / 1001);
  EXPECT_EQ(written.find('\n', at), written.size() - 1) << "the last line";
  say("again");
  EXPECT_EQ(all_of(say), "again\n");
}

// poll() reports room in a terminal that has less than the line takes.
TEST_F(Lines, HoldUpNobodyIfNobodyReadsTheTerminal) {
  int master = -1, slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  const UniqueFd mine(slave);
  reading_.reset(master);
  termios settings{};
  ::tcgetattr(slave, &settings);
  ::cfmakeraw(&settings);
  ::tcsetattr(slave, TCSANOW, &settings);
  LineWriter say(slave, "x");
  const std::string line(3000, 'a');
  for (int i = 0; i < 100; ++i) say(line);  // more than a terminal holds
  EXPECT_FALSE(say.flush(0ms));
  EXPECT_EQ(all_of(say).size(), 100U * 3001);
}

TEST_F(Lines, WaitForRoomIfSomebodyElseHasMadeTheDescriptorNonBlocking) {
  ::fcntl(writing_.get(), F_SETFL, O_NONBLOCK);
  LineWriter say(writing_.get(), "x");
  const std::string line(1000, 'a');
  for (int i = 0; i < 500; ++i) say(line);  // more than a pipe holds
  EXPECT_EQ(all_of(say).size(), 500U * 1001);
}

TEST_F(Lines, AreWrittenBeforeItEnds) {
  {
    LineWriter say(writing_.get(), "x");
    say("last");
  }
  std::array<char, 10> bytes{};
  ASSERT_EQ(::read(reading_.get(), bytes.data(), bytes.size()), 5);
  EXPECT_EQ(std::string(bytes.data(), 5), "last\n");
}

TEST_F(Lines, AreCutToWhatGoesInAtOnce) {
  LineWriter say(writing_.get(), "x");
  say(std::string(100'000, 'a'));
  EXPECT_EQ(all_of(say), std::string(PIPE_BUF - 1, 'a') + "\n");
}

}  // namespace
}  // namespace ddp::base
