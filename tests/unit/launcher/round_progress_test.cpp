#include "launcher/worker_group/round_progress.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

using worker_link::Progress;

TEST(RoundProgress, TheFirstStepIsDoneWhenEveryWorkerHasDoneIt) {
  RoundProgress progress(2);
  EXPECT_FALSE(progress.take(0, Progress{.has_stepped = true}));
  EXPECT_FALSE(progress.take(0, Progress{.has_stepped = true}));
  EXPECT_FALSE(progress.take(1, Progress{.has_stepped = false, .commits = 0}));
  EXPECT_TRUE(progress.take(1, Progress{.has_stepped = true}));
  EXPECT_FALSE(progress.take(1, Progress{.has_stepped = true})) << "once in a round";
  progress.begin_round();
  EXPECT_FALSE(progress.take(1, Progress{.has_stepped = true}));
  EXPECT_TRUE(progress.take(0, Progress{.has_stepped = true}));
}

TEST(RoundProgress, WhatIsKeptIsWhatTheFurthestHasAndEmptyWhereNobodyTold) {
  RoundProgress progress(2);
  EXPECT_EQ(progress.kept(), rendezvous::Progress{});
  progress.take(0, Progress{.commits = 0});
  EXPECT_EQ(progress.kept(), (rendezvous::Progress{0, {}}));
  progress.take(1, Progress{.commits = 15, .checkpoint_step = 100});
  EXPECT_EQ(progress.kept(), (rendezvous::Progress{0, 100})) << "what it comes with was made in a round before";
  progress.take(1, Progress{.commits = 20, .checkpoint_step = 100});
  progress.take(0, Progress{.commits = 4});
  EXPECT_EQ(progress.kept(), (rendezvous::Progress{5, 100}));
  progress.take(1, Progress{.commits = 3});
  EXPECT_EQ(progress.kept(), (rendezvous::Progress{5, 100}));
  progress.begin_round();
  EXPECT_EQ(progress.kept(), rendezvous::Progress{});
  progress.take(1, Progress{.commits = 30});
  EXPECT_EQ(progress.kept(), (rendezvous::Progress{0, {}}));
}

}  // namespace
}  // namespace ddp::launcher
