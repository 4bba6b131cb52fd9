#include "launcher/remote/frames.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

TEST(Frames, ArriveAsTheyWereSentWhereverTheyAreCut) {
  const std::string binary("\0\xff\n", 3);
  const auto sent = encoded(FrameKind::token, "secret") + encoded(FrameKind::input, "") +
                    encoded(FrameKind::out, binary) + encoded(FrameKind::err, std::string(70'000, 'x'));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{4}, std::size_t{7}, sent.size()}) {
    SCOPED_TRACE(piece);
    FrameReader reader;
    std::vector<Frame> got;
    for (std::size_t at = 0; at < sent.size(); at += piece)
      for (auto& frame : reader.feed(std::string_view(sent).substr(at, piece))) got.push_back(std::move(frame));
    ASSERT_EQ(got.size(), 4u);
    EXPECT_EQ(got[0].kind, FrameKind::token);
    EXPECT_EQ(got[0].bytes, "secret");
    EXPECT_EQ(got[1].bytes, "");
    EXPECT_EQ(got[2].bytes, binary);
    EXPECT_EQ(got[3].bytes.size(), 70'000u);
    EXPECT_FALSE(reader.is_broken());
  }
}

TEST(Frames, LengthBeyondTheLimitBreaksTheConnection) {
  FrameReader reader;
  EXPECT_TRUE(reader.feed(std::string("o\x7f\xff\xff\xff", 5)).empty());
  EXPECT_TRUE(reader.is_broken());
  EXPECT_TRUE(reader.feed(encoded(FrameKind::out, "later")).empty());
}

TEST(Mark, IsFoundBehindWhatALoginShellPrints) {
  const auto sent = "Welcome!\nno newline" + std::string(kRemoteMark) + "rest";
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, sent.size()}) {
    SCOPED_TRACE(piece);
    MarkFinder finder;
    std::string before, rest;
    for (std::size_t at = 0; at < sent.size(); at += piece) {
      before += finder.feed(std::string_view(sent).substr(at, piece));
      if (auto more = finder.take_rest()) rest += *more;
    }
    EXPECT_EQ(before, "Welcome!\nno newline");
    EXPECT_EQ(rest, "rest");
    EXPECT_EQ(finder.take_unmarked(), "");
  }
}

TEST(Mark, WithoutItEverythingIsOfTheLoginShell) {
  MarkFinder finder;
  auto text = finder.feed("sh: ddprun: not found\n");
  EXPECT_FALSE(finder.take_rest());
  text += finder.take_unmarked();
  EXPECT_EQ(text, "sh: ddprun: not found\n");
}

}  // namespace
}  // namespace ddp::launcher
