// How groups of the backend nccl come to be, or do not, over the stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/cut.hpp"
#include "ddp/bootstrap.hpp"
#include "tests/fake_gpu/backend_rank.hpp"
#include "worker_runtime/process_group/make_group.hpp"

namespace ddp::fake_gpu {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

TEST(Init, TellsOfAnNcclThatIsTooOld) {
  run_ranks(2, [](int) {
    set_variable("FAKE_NCCL_VERSION", "21805");
    const auto error = thrown_by<Error>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL 2.18.5 at "), HasSubstr("libfake_nccl.so is too old: 2.19.3 is"),
                                     HasSubstr("try:   install a later one, or set DDP_NCCL_LIBRARY")));
  });
}

TEST(Init, RefusesAnNcclWhoseCallsWouldBlock) {
  run_ranks(1, [](int) {
    set_variable("NCCL_COMM_BLOCKING", "1");
    const auto error = thrown_by<InvalidArgument>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL_COMM_BLOCKING is 1"), HasSubstr("try:   unset it")));
    set_variable("NCCL_COMM_BLOCKING", "0");
    join().barrier();
  });
}

TEST(Init, TellsOfDifferentNccls) {
  run_ranks(2, [](int rank) {
    set_variable("DDP_NCCL_LIBRARY", rank == 0 ? DDP_FAKE_NCCL : DDP_FAKE_NCCL_OLD);
    const auto error = thrown_by<InvalidArgument>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL 2.28.9"), HasSubstr("NCCL 2.19.3"), HasSubstr("the same NCCL")));
  });
}

TEST(Init, OptionsReachTheCommunicatorsOfAllGroups) {
  run_ranks(2, [](int) {
    auto group = join(testing::kPatience, {.nccl = {.max_ctas = 4, .traffic_class = 2}});
    const ProcessGroup half = group.split(0);
    // The first group has two communicators: one that sets up the other.
    EXPECT_EQ(fake_gpu_calls("ncclConfig maxCTAs 4"), 3U);
    EXPECT_EQ(fake_gpu_calls("ncclConfig trafficClass 2"), 3U);
    EXPECT_EQ(fake_gpu_calls("ncclConfig minCTAs 1"), 0U);
    EXPECT_EQ(fake_gpu_calls("ncclConfig commName group_0"), 2U);
    EXPECT_EQ(fake_gpu_calls("ncclConfig commName group_0/1"), 1U);
  });
  run_ranks(1, [](int) {
    auto group = join(testing::kPatience, {.nccl = {.min_ctas = 2, .name = "experts"}});
    EXPECT_EQ(fake_gpu_calls("ncclConfig commName experts"), 2U);
  });
}

TEST(Init, NeedsAGpu) {
  run_ranks(1, [](int) {
    set_variable("CUDA_VISIBLE_DEVICES", "");
    const auto error = thrown_by<InvalidArgument>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the backend nccl needs a GPU"));
  });
}

TEST(Init, ARankWithoutAGpuIsToldToTheOthersAtOnce) {
  run_ranks(3, [](int rank) {
    if (rank == 1) set_variable("CUDA_VISIBLE_DEVICES", "");
    const auto error = thrown_by<InvalidArgument>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the backend nccl needs a GPU"));
    if (rank != 1) {
      EXPECT_THAT(error->what(), HasSubstr("rank 1: "));
    }
  });
}

TEST(Init, RanksMayBeThreadsWithAGpuEach) {
  run_ranks(1, [](int) {
    ::setenv("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL, 1);
    const auto port = static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT")));
    const auto run = [&](int rank) {
      InitOptions options;
      options.backend = "nccl";
      options.device = rank;
      auto group =
          init_process_group({.rank = rank, .size = 2, .store_host = "127.0.0.1", .store_port = port}, options);
      const Array<float> values(group.device(), std::vector{1.0F + static_cast<float>(rank)});
      group.all_reduce(values.range());
      EXPECT_THAT(values.values(), ElementsAre(3.0F));
      group.barrier();
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
  });
}

TEST(Init, TwoRanksOnOneGpuAreToldToBoth) {
  run_ranks(3, [](int rank) {
    const auto error = thrown_by<InvalidArgument>([&] { join(testing::kPatience, {.device = rank == 2 ? 0 : rank}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("ranks 0 and 2 are both on GPU-"), HasSubstr("InitOptions::share_device")));
  });
}

TEST(Init, ABindingByUuidIsSeenThrough) {
  run_ranks(2, [](int) {
    set_variable("CUDA_VISIBLE_DEVICES", "GPU-46414b45-0000-0000-0000-000000000003");
    const auto error = thrown_by<InvalidArgument>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("ranks 0 and 1 are both on GPU-46414b45-0000-0000-0000-000000000003"));
  });
}

TEST(Init, OneGpuInSightIsTakenWhateverItsName) {  // as ddprun --virtual-local-rank leaves it
  run_ranks(2, [](int rank) {
    set_variable("LOCAL_RANK", "0");
    set_variable("CUDA_VISIBLE_DEVICES", rank == 0 ? "GPU-46414b45-0000-0000-0000-000000000003" : "1");
    auto group = join();
    EXPECT_EQ(group.device().index, 0);
    group.barrier();
  });
}

TEST(Init, RanksShareAGpuWhereAllMeanIt) {
  run_ranks(2, [](int rank) {
    set_variable("FAKE_GPU_DEVICES", "1");
    set_variable("NCCL_HOSTID", std::to_string(rank));
    auto group = join(testing::kPatience, {.share_device = true});
    EXPECT_EQ(group.device().index, 0);
    group.barrier();
  });
}

TEST(Init, RanksThatShareAGpuAreToldWhatNcclWants) {
  run_ranks(2, [](int) {
    set_variable("FAKE_GPU_DEVICES", "1");
    const auto error = thrown_by<Error>([] { join(testing::kPatience, {.share_device = true}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("NCCL can't connect the ranks: invalid usage"), HasSubstr("Duplicate GPU detected"),
                      HasSubstr("try:   for ranks that share a GPU, NCCL_HOSTID with another value for each")));
  });
}

TEST(Init, ThatNeverEndsIsGivenUpAtTheDeadline) {
  run_ranks(2, [](int rank) {
    if (rank == 0) {  // which sees rank 1 give up, where that is a little earlier
      EXPECT_THROW(join(milliseconds(2'000)), Error);
      EXPECT_EQ(fake_gpu_live("ncclComm"), 0U);
      return;
    }
    set_faults("ncclCommInitRankConfig:1:hang");
    const auto error = thrown_by<TimeoutError>([] { join(milliseconds(2'000)); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL did not connect the 2 ranks within 2000 ms, though all have come"),
                                     HasSubstr("where: rank 1 of 2"), HasSubstr("NCCL_SOCKET_IFNAME")));
    EXPECT_EQ(fake_gpu_live("ncclComm"), 0U);
  });
}

TEST(Init, ARankThatDiesMeanwhileIsSeenAtTheDeadline) {
  testing::RankProcesses ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclCommInitRankConfig:1:die_inside");
    thrown_by<TimeoutError>([] { join(milliseconds(2'000)); });
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
}

TEST(Init, ThatIsOnlySlowIsWaitedFor) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclCommInitRankConfig:1:delay:200");
    auto group = join();
    group.barrier();
  });
}

TEST(Init, NamesARankThatDoesNotCome) {
  testing::RankProcesses ranks(3,
                               [](int) {
                                 const auto error = thrown_by<TimeoutError>([] { join(milliseconds(2'000)); });
                                 ASSERT_TRUE(error);
                                 EXPECT_THAT(error->ranks(), ElementsAre(1));
                               },
                               {1});
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Init, ErrorsOfNcclAreTold) {
  run_ranks(1, [](int) {
    set_faults("ncclCommInitRankConfig:1:return:2");
    const auto error = thrown_by<Error>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL refuses to make a communicator: "), HasSubstr("NCCL_DEBUG=INFO")));
  });
}

// As run_elastic does it when the launcher ends the round.
TEST(Init, IsEndedByACut) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclCommInitRankConfig:1:hang");
    ::setenv("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL, 1);
    base::Cut cut;
    std::thread other([&] {
      wait_until([] { return fake_gpu_calls("ncclCommInitRankConfig") > 0; });
      cut.cut("the round is over");
    });
    InitOptions options;
    options.backend = "nccl";
    const auto error =
        thrown_by<AbortedError>([&] { process_group::make_group(process_group::present_launch(), options, &cut); });
    other.join();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the round is over"));
    EXPECT_EQ(fake_gpu_live("ncclComm"), 0U);
  });
}

TEST(Init, AFailedOneLeavesThePlaceToTheNext) {
  run_ranks(2, [](int rank) {
    if (rank == 0) set_faults("ncclCommInitRankConfig:1:hang");
    EXPECT_THROW(join(milliseconds(300)), Error);
    auto group = join();
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
