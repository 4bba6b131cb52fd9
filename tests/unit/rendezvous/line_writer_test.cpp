#include "base/line_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <climits>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

class Lines : public ::testing::Test {
 protected:
  Lines() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
  }

  // What came since the last call.
  std::string came() {
    std::string out;
    std::array<char, 65536> bytes{};
    ::fcntl(reading_.get(), F_SETFL, O_NONBLOCK);
    for (ssize_t count = 0; (count = ::read(reading_.get(), bytes.data(), bytes.size())) > 0;)
      out.append(bytes.data(), static_cast<std::size_t>(count));
    return out;
  }

  boost::asio::io_context io_;
  UniqueFd reading_, writing_;
};

TEST_F(Lines, StayOneLineWhateverOthersHavePutIntoThem) {
  LineWriter say(io_, writing_.get(), "x: ");
  say("host a\nx: b\x1b[2J\xc2\x9b"
      "2J\xe2\x80\xa8 has left");
  EXPECT_EQ(came(), "x: host a\\nx: b\\x1b[2J\\u009b2J\\u2028 has left\n");
}

TEST_F(Lines, HaveThePrefix) {
  LineWriter say(io_, writing_.get(), "x: ");
  say("one");
  say("two");
  EXPECT_EQ(came(), "x: one\nx: two\n");
}

TEST_F(Lines, AreDroppedAndCountedWhereNobodyReads) {
  LineWriter say(io_, writing_.get(), "");
  const std::string line(1000, 'a');
  for (int i = 0; i < 1000; ++i) say(line);  // far more than a pipe holds; a call that waited would never return
  const auto written = came();
  EXPECT_EQ(written.size() % 1001, 0u) << "whole lines only";
  EXPECT_LT(written.size(), 500'000u);
  say("again");
  EXPECT_EQ(came(), std::to_string(1000 - written.size() / 1001) + " lines before this one were dropped\nagain\n");
}

TEST_F(Lines, AreCutToWhatGoesInAtOnce) {
  LineWriter say(io_, writing_.get(), "");
  say(std::string(100'000, 'a'));
  EXPECT_EQ(came(), std::string(PIPE_BUF - 1, 'a') + "\n");
}

}  // namespace
}  // namespace ddp::base
