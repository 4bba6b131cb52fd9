// What a worker's agent hears of its progress, in real processes whose agent the test plays.
#include <ddp/ddp.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/stand_in_agent.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp {
namespace {

using testing::kRound;
using testing::RankProcesses;
using testing::StandInAgent;
using worker_link::LinkLeft;
using worker_link::LinkProgress;
using worker_link::LinkRoundOver;
using worker_link::LinkSeat;

TEST(Progress, StepsCommitsAndCheckpointsAreTold) {
  const test::ScratchDirectory scratch;
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    const std::vector<float> values(1);
    CheckpointDirectory checkpoints(scratch.path());
    auto world = init_process_group();
    ElasticState state;
    state.sync(world);
    std::vector<float> weights(1);
    DistributedDataParallel model(world, {{"weights", {1}, weights}});
    model.begin_step(Sync::off).finish();
    {
      auto step = model.begin_step();
      step.ready(0);
      step.finish();
    }
    state.commit();
    checkpoints.save(world.round(), 1000, {{"values", {1}, values}});
  });
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, false, {}, 0}))
      << "a folder of checkpoints, empty as yet";
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, false, 0, 0}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, true, 0, 0}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, true, 1, 0}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, true, 1, 1000}));
  ranks.expect_success(0);
  EXPECT_EQ(agent.count_rest<LinkProgress>(0), 0);
}

TEST(Progress, WhatIsFoundIsNotWhatThisRunHasSaved) {
  const test::ScratchDirectory scratch;
  const std::vector<float> values(1);
  testing::run_ranks(1, [&](int) {  // as in a process of its own: progress is the process's
    CheckpointDirectory(scratch.path()).save({1, 2, 3}, 700, {{"values", {1}, values}});
  });
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    CheckpointDirectory directory(scratch.path());
    EXPECT_TRUE(directory.newest());
    init_process_group();
    directory.save({1, 2, 4}, UINT64_MAX - 1, {{"values", {1}, values}});
  });
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, false, {}, 0}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, false, {}, std::uint64_t{1} << 52}))
      << "no greater number can be told";
  ranks.expect_success(0);
}

TEST(Progress, AfterAReseatItIsToldAnew) {
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    ElasticState state;
    std::vector<float> weights(1);
    run_elastic(state, [&](ProcessGroup world) {
      DistributedDataParallel model(world, {{"weights", {1}, weights}});
      auto step = model.begin_step();
      step.ready(0);
      step.finish();
      state.commit();
      while (world.round().number == kRound) world.barrier();
    });
  });
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, false, 0, {}}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, true, 0, {}}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound, true, 1, {}}));
  agent.tell(0, LinkRoundOver{kRound, "for the test"});
  agent.hear<LinkLeft>(0);
  agent.tell(0, LinkSeat{{{"DDPRUN_ROUND_ID", testing::round_id(kRound + 1)}}});
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound + 1, false, 1, {}}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound + 1, true, 1, {}}));
  EXPECT_EQ(agent.hear<LinkProgress>(0), (LinkProgress{kRound + 1, true, 2, {}}));
  ranks.expect_success(0);
}

}  // namespace
}  // namespace ddp
