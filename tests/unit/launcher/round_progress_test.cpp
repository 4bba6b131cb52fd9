#include "launcher/worker_group/round_progress.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using worker_link::LinkProgress;

// Of two workers.
class RoundProgressOfTwo : public ::testing::Test {
 protected:
  bool note(int local_rank, const LinkProgress& message) { return progress_.note(message, local_rank, workers_, now_); }
  void begin_round() {
    progress_.begin_round();
    workers_ = Workers(2);
  }

  std::chrono::milliseconds now_{0};
  RoundProgress progress_;
  Workers workers_ = Workers(2);
};

TEST_F(RoundProgressOfTwo, TheFirstStepIsDoneWhenEveryWorkerHasDoneIt) {
  EXPECT_FALSE(note(0, LinkProgress{.has_stepped = true}));
  EXPECT_FALSE(note(0, LinkProgress{.has_stepped = true}));
  EXPECT_FALSE(note(1, LinkProgress{.has_stepped = false, .commits = 0}));
  EXPECT_TRUE(note(1, LinkProgress{.has_stepped = true}));
  EXPECT_FALSE(note(1, LinkProgress{.has_stepped = true})) << "once in a round";
  begin_round();
  EXPECT_FALSE(note(1, LinkProgress{.has_stepped = true}));
  EXPECT_TRUE(note(0, LinkProgress{.has_stepped = true}));
}

TEST_F(RoundProgressOfTwo, WhatIsKeptIsWhatTheFurthestHasAndEmptyWhereNobodyTold) {
  EXPECT_EQ(progress_.kept(), rendezvous::Progress{});
  note(0, LinkProgress{.commits = 0});
  EXPECT_EQ(progress_.kept(), (rendezvous::Progress{0, {}}));
  note(1, LinkProgress{.commits = 15, .checkpoint_step = 100});
  EXPECT_EQ(progress_.kept(), (rendezvous::Progress{0, 100})) << "what it comes with was made in a round before";
  note(1, LinkProgress{.commits = 20, .checkpoint_step = 100});
  note(0, LinkProgress{.commits = 4});
  EXPECT_EQ(progress_.kept(), (rendezvous::Progress{5, 100, 0ms}));
  note(1, LinkProgress{.commits = 3});
  EXPECT_EQ(progress_.kept(), (rendezvous::Progress{5, 100, 0ms}));
  begin_round();
  EXPECT_EQ(progress_.kept(), rendezvous::Progress{});
  note(1, LinkProgress{.commits = 30});
  EXPECT_EQ(progress_.kept(), (rendezvous::Progress{0, {}}));
}

TEST_F(RoundProgressOfTwo, KnowsWhenSomethingWasKeptLastInTheRound) {
  note(0, LinkProgress{.commits = 7, .checkpoint_step = 100});
  note(1, LinkProgress{.checkpoint_step = 0});
  EXPECT_FALSE(progress_.kept().kept_at) << "these are of rounds before";
  now_ = 3s;
  note(1, LinkProgress{.checkpoint_step = 120});
  EXPECT_EQ(progress_.kept().kept_at, 3s);
  now_ = 4s;
  note(0, LinkProgress{.commits = 7, .checkpoint_step = 120});
  EXPECT_EQ(progress_.kept().kept_at, 3s) << "known already";
  now_ = 5s;
  note(0, LinkProgress{.commits = 8, .checkpoint_step = 120});
  EXPECT_EQ(progress_.kept().kept_at, 5s);
  begin_round();
  EXPECT_FALSE(progress_.kept().kept_at);
}

}  // namespace
}  // namespace ddp::launcher
