#include "launcher/output/line_merger.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/screen.hpp"

namespace ddp::launcher {
namespace {

using test::Screen;
using Source = LineMerger::Source;
constexpr Source kRank0{0, 1}, kRank0Err{0, 2}, kRank1{1, 1}, kAgent{kAgentSource, 2};
const std::string kWipe = "\r\x1b[K";

std::string once_several_print(Source source, bool several) {
  return several ? "[" + std::to_string(source.rank) + "] " : "";
}
std::string always(Source source, bool) { return std::to_string(source.rank) + ":"; }

LineMerger to_file(LineMerger::Prefix prefix = nullptr) { return LineMerger({.terminal = false, .prefix = prefix}); }
LineMerger to_terminal(LineMerger::Prefix prefix = nullptr) { return LineMerger({.terminal = true, .prefix = prefix}); }

TEST(LineMergerToFile, PassesWholeLinesOnly) {
  auto merger = to_file();
  EXPECT_EQ(merger.feed(kRank0, "hel"), "");
  EXPECT_EQ(merger.feed(kRank1, "world\nnext"), "world\n");
  EXPECT_EQ(merger.feed(kRank0, "lo\n"), "hello\n");
  EXPECT_EQ(merger.end(kRank1), "next\n");
  EXPECT_EQ(merger.end(kRank0), "");
}

TEST(LineMergerToFile, KeepsCarriageReturnsWhereTheyWere) {
  auto merger = to_file();
  std::string out;
  for (const char c : std::string("\r10%\r20%\r\nend\r\n")) out += merger.feed(kRank0, std::string(1, c));
  EXPECT_EQ(out, "\r10%\r20%\r\nend\r\n");
}

TEST(LineMergerToFile, AnUnfinishedLastLineOfOneWorkerStaysAsItIs) {
  auto merger = to_file();
  EXPECT_EQ(merger.feed(kRank0, "no newline"), "");
  EXPECT_EQ(merger.end(kRank0), "no newline");
}

TEST(LineMergerToFile, DdprunsOwnLinesBeginALine) {
  auto merger = to_file();
  EXPECT_EQ(merger.feed(kRank0, "no newline"), "");
  EXPECT_EQ(merger.end(kRank0), "no newline");
  EXPECT_EQ(merger.feed(kAgent, "error: x\n"), "\nerror: x\n");
  EXPECT_EQ(merger.feed(kAgent, "try: y\n"), "try: y\n");
}

TEST(LineMergerToFile, AnEndlessLineIsPassedOnInPieces) {
  auto merger = to_file();
  std::size_t passed = 0;
  for (int i = 0; i < 100; ++i) passed += merger.feed(kRank0, std::string(4096, 'x')).size();
  EXPECT_GT(passed, 300'000u);
}

// Whatever the cuts, every worker's lines come out whole and in order.
TEST(LineMergerToFile, NeverMixesLinesWhateverTheCuts) {
  std::mt19937_64 random(7);
  auto merger = to_file();
  std::string sent[3], out;
  std::size_t at[3] = {0, 0, 0};
  for (int rank = 0; rank < 3; ++rank)
    for (int line = 0; line < 200; ++line)
      sent[rank] += std::to_string(rank) + ":" + std::to_string(line) + std::string(random() % 40, '.') + "\n";
  for (bool left = true; left;) {
    left = false;
    const auto rank = static_cast<int>(random() % 3);
    const auto count = std::min<std::size_t>(random() % 30, sent[rank].size() - at[rank]);
    out += merger.feed({rank, 1}, sent[rank].substr(at[rank], count));
    at[rank] += count;
    for (int r = 0; r < 3; ++r) left |= at[r] < sent[r].size();
  }
  std::string got[3];
  for (std::size_t i = 0; i < out.size();) {
    const auto stop = out.find('\n', i);
    ASSERT_NE(stop, std::string::npos);
    const int rank = out[i] - '0';
    ASSERT_TRUE(rank >= 0 && rank < 3) << out.substr(i, stop - i);
    got[rank] += out.substr(i, stop + 1 - i);
    i = stop + 1;
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(got[rank], sent[rank]);
}

TEST(LineMergerToFile, APrefixStandsWhereALineOrARedrawingBegins) {
  auto merger = to_file(always);
  EXPECT_EQ(merger.feed(kRank0, "one\n\ntw"), "0:one\n0:\n");
  EXPECT_EQ(merger.feed(kRank1, "\r1%\r2%\r\nend\r\n"), "\r1:1%\r1:2%\r\n1:end\r\n");
  EXPECT_EQ(merger.feed(kRank0, "o\n"), "0:two\n");
  EXPECT_EQ(merger.feed(kAgent, "ddprun: x\n"), "ddprun: x\n");
  EXPECT_EQ(merger.feed(kRank0, "rest"), "");
  EXPECT_EQ(merger.end(kRank0), "0:rest\n");
}

TEST(LineMergerToFile, ALineInPiecesHasOnePrefix) {
  auto merger = to_file(always);
  std::string out;
  for (int i = 0; i < 5; ++i) out += merger.feed(kRank0, std::string(40'000, 'x'));
  out += merger.feed(kRank0, "\nnext\n");
  EXPECT_EQ(std::count(out.begin(), out.end(), ':'), 2) << out.substr(0, 20);
  EXPECT_EQ(out.substr(out.size() - 8), "\n0:next\n");
}

TEST(LineMergerToFile, NewWorkerBeginsALineIfTheOldOneEndedInOne) {
  auto merger = to_file(always);
  EXPECT_EQ(merger.feed(kRank1, "one\n"), "1:one\n");
  EXPECT_EQ(merger.feed(kRank0, "rest"), "");
  EXPECT_EQ(merger.end(kRank0), "0:rest\n");
  EXPECT_EQ(merger.feed(kRank0, "new\n"), "0:new\n");
}

TEST(LineMergerToFile, NewWorkerBeginsALineIfTheOldOneEndedBetweenPieces) {
  auto merger = to_file(always);
  EXPECT_EQ(merger.feed(kRank1, "one\n"), "1:one\n");
  const std::string piece(70'000, 'x');
  for (const bool is_interrupted : {false, true}) {
    EXPECT_EQ(merger.feed(kRank0, piece), "0:" + piece);
    if (is_interrupted) {
      EXPECT_EQ(merger.feed(kRank1, "two\n"), "1:two\n");
    }
    EXPECT_EQ(merger.end(kRank0), is_interrupted ? "" : "\n");
    EXPECT_EQ(merger.feed(kRank0, "new\n"), "0:new\n");
  }
}

TEST(LineMergerToTerminal, OneWorkerLooksAsIfItWereAlone) {
  auto merger = to_terminal();
  EXPECT_EQ(merger.feed(kRank0, "a prompt> "), "a prompt> ");
  EXPECT_EQ(merger.feed(kRank0, "answer\n"), "answer\n");
  EXPECT_EQ(merger.feed(kRank0, "\r10%"), "\r10%");
  EXPECT_EQ(merger.feed(kRank0, "\r20%\n"), "\r20%\n");
}

TEST(LineMergerToTerminal, PrefixesLinesOnceASecondWorkerPrints) {
  auto merger = to_terminal(once_several_print);
  EXPECT_EQ(merger.feed(kRank0, "alone\n"), "alone\n");
  EXPECT_EQ(merger.feed(kRank1, "me too\n"), "[1] me too\n");
  EXPECT_EQ(merger.feed(kRank0, "one\ntwo\n"), "[0] one\n[0] two\n");
  EXPECT_EQ(merger.feed(kRank0, "\r1%\r2%"), "\r[0] 1%\r[0] 2%");
  EXPECT_EQ(merger.feed(kAgent, "ddprun: x\n"), kWipe + "ddprun: x\n[0] 2%");
}

TEST(LineMergerToTerminal, NoPrefixWhenTheUserWantsNone) {
  auto merger = to_terminal();
  EXPECT_EQ(merger.feed(kRank0, "a\n") + merger.feed(kRank1, "b\n"), "a\nb\n");
}

TEST(LineMergerToTerminal, AProgressBarSurvivesLinesOfOthers) {
  auto merger = to_terminal();
  EXPECT_EQ(merger.feed(kRank0Err, "\r 50%"), "\r 50%");
  EXPECT_EQ(merger.feed(kRank0, "epoch 1\n"), kWipe + "epoch 1\n 50%");
  EXPECT_EQ(merger.feed(kRank1, "half a "), "");  // kept back while the bar stands there
  EXPECT_EQ(merger.feed(kRank1, "line\n"), kWipe + "half a line\n 50%");
  EXPECT_EQ(merger.feed(kRank0Err, "\r 60%"), "\r 60%");
}

TEST(LineMergerToTerminal, AnUnfinishedLastLineIsEnded) {
  auto merger = to_terminal();
  EXPECT_EQ(merger.feed(kRank0, "\r 50%"), "\r 50%");
  EXPECT_EQ(merger.end(kRank0), "\n");
  EXPECT_EQ(merger.feed(kAgent, "ddprun: x\n"), "ddprun: x\n");
}

TEST(LineMergerToTerminal, TheLastOfAKeptBackBarIsShownAtItsEnd) {
  auto merger = to_terminal();
  EXPECT_EQ(merger.feed(kRank0, "open"), "open");
  EXPECT_EQ(merger.feed(kRank1, "\r1%\r2%"), "");
  EXPECT_EQ(merger.end(kRank1), "\n2%\n");
}

TEST(LineMergerToTerminal, APromptIsPrintedOnce) {
  auto merger = to_terminal(always);
  EXPECT_EQ(merger.feed(kRank0, "name? "), "0:name? ");
  EXPECT_EQ(merger.feed(kRank1, "b\n"), "\n1:b\n");  // the answer, which the terminal shows, may stand there
  EXPECT_EQ(merger.feed(kRank1, "c\n"), "1:c\n");
  EXPECT_EQ(merger.feed(kRank0, "hello\n"), "0:hello\n");
  EXPECT_EQ(merger.feed(kRank0, "again? "), "0:again? ");
  EXPECT_EQ(merger.feed(kRank1, "b\n"), "\n1:b\n");
  EXPECT_EQ(merger.feed(kRank0, "\nend\n"), "0:end\n");
}

TEST(LineMergerToTerminal, ABarWaitsWhileAPromptIsTheLastLine) {
  auto merger = to_terminal(always);
  EXPECT_EQ(merger.feed(kRank0, "name? "), "0:name? ");
  EXPECT_EQ(merger.feed(kRank1, "\r1%"), "");
  EXPECT_EQ(merger.feed(kRank0, "world\n"), "world\n1:1%");
}

TEST(LineMergerToTerminal, ABarThatFillsTheRowIsWipedHoweverManyBytesItHas) {
  for (const std::string bar : {"1234", "5%|█", "\x1b[31m12\x1b[0m|█", "123█\r"}) {
    auto merger = to_terminal();
    merger.set_size(4, 24);
    EXPECT_EQ(merger.feed(kRank0, "\r" + bar), "\r" + bar);
    EXPECT_EQ(merger.feed(kRank1, "b\n"), kWipe + "b\n" + bar);
  }
  auto merger = to_terminal(always);
  merger.set_size(4, 24);
  EXPECT_EQ(merger.feed(kRank0, "\r123"), "\r0:123");  // wraps by its prefix
  EXPECT_EQ(merger.feed(kRank1, "b\n"), "\n1:b\n0:123");
}

// Some write the '\r' behind a bar, and a read may end between it and the next drawing.
TEST(LineMergerToTerminal, ABarStandsUntilItIsDrawnOver) {
  auto merger = to_terminal(always);
  EXPECT_EQ(merger.feed(kRank0, "1%\r"), "0:1%\r");
  EXPECT_EQ(merger.feed(kRank1, "b\n"), kWipe + "1:b\n0:1%\r");
  EXPECT_EQ(merger.feed(kRank0, "2%\r"), "0:2%\r");
  EXPECT_EQ(merger.feed(kRank1, "b\n"), kWipe + "1:b\n0:2%\r");
  EXPECT_EQ(merger.feed(kRank0, "\n"), "\n");
  EXPECT_EQ(merger.feed(kRank1, "b\n"), "1:b\n");
}

// As tqdm draws the bar of its argument `position`.
std::string bar_at(int position, const std::string& text) {
  const auto rows = static_cast<std::size_t>(position);
  std::string up;
  for (std::size_t i = 0; i < rows; ++i) up += "\x1b[A";
  return std::string(rows, '\n') + "\r" + text + up;
}

TEST(LineMergerToTerminal, BarsOfSeveralWorkersStandBelowEachOther) {
  auto merger = to_terminal(always);
  Screen screen;
  for (const int percent : {10, 20}) {
    for (const int rank : {2, 0, 1}) {
      screen << merger.feed({rank, 2}, bar_at(rank, std::to_string(percent) + "%"));
      if (percent == 20) screen << merger.feed({rank, 1}, "line\n");
    }
  }
  screen << merger.feed(kAgent, "ddprun: x\n");
  EXPECT_EQ(screen.rows(),
            (std::vector<std::string>{"2:line", "0:line", "1:line", "ddprun: x", "0:20%", "1:20%", "2:20%"}));
  for (const int rank : {1, 0, 2}) screen << merger.end({rank, 2});
  EXPECT_EQ(screen.rows(),
            (std::vector<std::string>{"2:line", "0:line", "1:line", "ddprun: x", "1:20%", "0:20%", "2:20%"}));
}

// With `leave`, tqdm draws its last bar at the top row, and leaves the one that it drew before.
TEST(LineMergerToTerminal, ABarThatEndsAtTheTopRowIsThereOnce) {
  auto merger = to_terminal(always);
  Screen screen;
  screen << merger.feed({0, 2}, bar_at(0, "50%"));
  screen << merger.feed({1, 2}, bar_at(1, "90%"));
  screen << merger.feed({1, 2}, "\r100%\n");
  screen << merger.end({1, 2});
  EXPECT_EQ(screen.rows(), (std::vector<std::string>{"1:100%", "0:50%"}));
}

TEST(LineMergerToTerminal, NestedBarsOfSeveralWorkersStandBelowEachOther) {
  auto merger = to_terminal(always);
  Screen screen;
  for (const int percent : {10, 20})
    for (const int rank : {0, 1}) {
      screen << merger.feed({rank, 2}, bar_at(0, "outer"));
      screen << merger.feed({rank, 2}, bar_at(1, std::to_string(percent) + "%"));
    }
  EXPECT_EQ(screen.rows(), (std::vector<std::string>{"0:outer", "0:20%", "1:outer", "1:20%"}));
}

TEST(LineMergerToTerminal, BarsThatDoNotFitOnTheScreenAreLeftOut) {
  auto merger = to_terminal(always);
  merger.set_size(6, 4);
  Screen screen;
  for (int rank = 0; rank < 9; ++rank) screen << merger.feed({rank, 2}, rank == 0 ? "\r1234" : "\r12345678");
  screen << merger.feed(kAgent, "x\n");
  EXPECT_EQ(screen.rows(), (std::vector<std::string>{"x", "0:1234", "1:1234", "2:1234"}));
}

// Whatever the cuts, each line is there once, in order, and the bars as they were drawn last below them.
TEST(LineMergerToTerminal, LinesAndBarsOfManyWorkersAreWholeWhateverTheCuts) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    auto merger = to_terminal(always);
    Screen screen;
    constexpr int kRanks = 4;
    std::string sent[kRanks];
    std::size_t at[kRanks] = {};
    std::vector<std::string> lines[kRanks];
    for (int rank = 0; rank < kRanks; ++rank)
      for (int step = 0; step < 20; ++step) {
        if (step == 5 || step == 11) {  // as tqdm.write(): the bar goes, a line comes, the bar is drawn again
          lines[rank].push_back(std::to_string(rank) + ":line " + std::to_string(step));
          sent[rank] += bar_at(rank, "       ") + "\rline " + std::to_string(step) + "\n";
        }
        sent[rank] += bar_at(rank, "step " + std::to_string(step));
      }
    for (bool left = true; left;) {
      const auto rank = random() % kRanks;
      const auto count = std::min<std::size_t>(random() % 12, sent[rank].size() - at[rank]);
      screen << merger.feed({static_cast<int>(rank), 2}, sent[rank].substr(at[rank], count));
      at[rank] += count;
      left = false;
      for (int r = 0; r < kRanks; ++r) left |= at[r] < sent[r].size();
    }
    auto rows = screen.rows();
    ASSERT_GE(rows.size(), 4u);
    const std::vector<std::string> bars(rows.end() - kRanks, rows.end());
    EXPECT_EQ(bars, (std::vector<std::string>{"0:step 19", "1:step 19", "2:step 19", "3:step 19"}));
    rows.resize(rows.size() - kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> got;
      for (const auto& row : rows)
        if (!row.empty() && row[0] == '0' + rank) got.push_back(row);
      EXPECT_EQ(got, lines[rank]);
    }
  }
}

}  // namespace
}  // namespace ddp::launcher
