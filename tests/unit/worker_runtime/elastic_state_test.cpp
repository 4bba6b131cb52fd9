// Elastic state on one rank, and what ranks take from each other.
#include <ddp/elastic.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

struct Plain {
  std::int64_t step;
  double rate;
};

TEST(ElasticState, RestoreGoesBackToTheLastCommit) {
  std::vector<float> values{1, 2, 3};
  Plain plain{7, 0.5};
  ElasticState state;
  state.add(values);
  state.add_struct(plain);
  state.restore();
  EXPECT_THAT(values, ElementsAre(1, 2, 3)) << "there is nothing to go back to";
  EXPECT_EQ(state.commits(), 0u);
  for (std::int64_t step = 1; step <= 3; ++step) {  // both copies in turns
    values[1] = static_cast<float>(10 * step);
    plain.step = step;
    state.commit();
    EXPECT_EQ(state.commits(), static_cast<std::uint64_t>(step));
    values = {0, 0, 0};
    plain = {-1, -1};
    state.restore();
    EXPECT_THAT(values, ElementsAre(1, 10 * step, 3));
    EXPECT_EQ(plain.step, step);
    EXPECT_EQ(plain.rate, 0.5);
  }
}

enum class Phase : std::uint8_t { warm_up, main };

TEST(ElasticState, NumbersArraysVectorsAndSpansAreKeptByTheirContents) {
  int table[2][2] = {{1, 2}, {3, 4}};
  std::array<double, 2> rates{0.5, 0.25};
  Phase phase = Phase::warm_up;
  std::vector<std::uint64_t> seeds{5, 6};
  std::vector<float> owner{7, 8};
  const std::span<float> shown(owner);
  ElasticState state;
  state.add(table);
  state.add(rates);
  state.add(phase);
  state.add(seeds);
  state.add(shown);
  state.commit();
  table[1][1] = 0;
  rates = {};
  phase = Phase::main;
  seeds = {0, 0};
  owner = {0, 0};
  state.restore();
  EXPECT_EQ(table[1][1], 4);
  EXPECT_THAT(rates, ElementsAre(0.5, 0.25));
  EXPECT_EQ(phase, Phase::warm_up);
  EXPECT_THAT(seeds, ElementsAre(5, 6));
  EXPECT_THAT(owner, ElementsAre(7, 8));
}

template <class T>
constexpr bool can_add() {
  return requires(ElasticState & state, T & value) { state.add(value); };
}

struct HoldsAPointer {
  const float* values;
};

TEST(ElasticState, WhatMayHoldPointersIsNoEntryByItself) {
  EXPECT_TRUE(can_add<int>() && can_add<std::vector<float>>() && can_add<std::span<float>>() && can_add<MemoryRange>());
  EXPECT_FALSE(can_add<int*>());
  EXPECT_FALSE((can_add<std::array<int*, 2>>()));
  EXPECT_FALSE(can_add<const int>());
  EXPECT_FALSE(can_add<Plain>()) << "only by add_struct()";
  EXPECT_FALSE(can_add<HoldsAPointer>());
  EXPECT_FALSE(can_add<std::string_view>());
  EXPECT_FALSE(can_add<std::span<const float>>());
  EXPECT_FALSE(can_add<std::span<float*>>());
  EXPECT_FALSE(can_add<std::vector<std::string>>());
  EXPECT_FALSE(can_add<std::vector<bool>>());
  EXPECT_FALSE((can_add<std::pair<int, int>>()));
}

TEST(ElasticState, WhatCannotBeInItIsRefused) {
  std::vector<float> values(3);
  ElasticState on_a_gpu;
  on_a_gpu.add(MemoryRange(values.data(), values.size(), DataType::float32, {Device::Kind::cuda, 1}));
  const auto unknown = thrown_by<InvalidArgument>([&] { on_a_gpu.commit(); });
  ASSERT_TRUE(unknown);
  EXPECT_THAT(unknown->what(), HasSubstr("cuda:1, which no sync() with a group of that device has made known"));
  auto on_cpu = init_process_group();
  const auto elsewhere = thrown_by<InvalidArgument>([&] { on_a_gpu.sync(on_cpu); });
  ASSERT_TRUE(elsewhere);
  EXPECT_THAT(elsewhere->what(), HasSubstr("cuda:1, which the group does not reach"));
  ElasticState state;
  state.add(values);
  state.commit();
  const auto too_late = thrown_by<InvalidArgument>([&] { state.add(values); });
  ASSERT_TRUE(too_late);
  EXPECT_THAT(too_late->what(), HasSubstr("add every entry first"));
}

// What each rank's values are after a sync, where rank r had made `commits[r]` of them, each of values 100 * r + its
// count.
void expect_taken(const std::vector<int>& commits, std::int64_t want, std::uint64_t want_count) {
  run_ranks(static_cast<int>(commits.size()), [&](int rank) {
    std::vector<std::int64_t> values(5, 100 * rank);
    ElasticState state;
    state.add(values);
    for (int i = 0; i < commits[static_cast<std::size_t>(rank)]; ++i) {
      for (auto& value : values) ++value;
      state.commit();
    }
    values.assign(5, 100 * rank + 50);  // since the last commit
    auto world = init_process_group();
    state.sync(world);
    EXPECT_THAT(values, Each(want));
    EXPECT_EQ(state.commits(), want_count);
    values.assign(5, -1);
    state.restore();
    EXPECT_THAT(values, Each(want)) << "what was taken is a commit of this rank, too";
    world.barrier();
  });
}

TEST(ElasticState, AllTakeTheNewestCommit) { expect_taken({1, 3, 2}, 103, 3); }
TEST(ElasticState, OfEqualCommitsThatOfTheLowestRankIsTaken) { expect_taken({0, 2, 2}, 102, 2); }
TEST(ElasticState, WithoutAnyCommitAllTakeWhatRank0Holds) { expect_taken({0, 0}, 50, 0); }
TEST(ElasticState, AReplacementOfRank0BringsNothingAndTakesAll) { expect_taken({0, 1}, 101, 1); }

TEST(ElasticState, ACommitOfALaterRoundIsNewerHoweverManyTheOtherHas) {
  run_ranks(2, [](int rank) {
    std::int64_t value = rank, later = 0;
    ElasticState state, synced;
    state.add(value);
    synced.add(later);
    auto world = init_process_group();
    synced.sync(world);  // from here on its commits are of this round
    later = 42;
    synced.commit();
    for (int i = 0; i < 5; ++i) state.commit();  // of none
    (rank == 0 ? synced : state).sync(world);
    EXPECT_EQ(rank == 0 ? later : value, 42);
    EXPECT_EQ((rank == 0 ? synced : state).commits(), 1u);
    world.barrier();
  });
}

TEST(ElasticState, LargeStateComesInSeveralParts) {
  constexpr std::size_t kCount = 5'000'001;  // 40 MB, and no whole number of parts
  run_ranks(2, [](int rank) {
    struct Odd {
      char text[3];
    } text{{'x', 'y', static_cast<char>('0' + rank)}};
    std::vector<double> values(kCount, rank);
    ElasticState state;
    state.add_struct(text);
    state.add(values);
    if (rank == 1) {
      values.back() = 17;
      state.commit();
    }
    auto world = init_process_group();
    state.sync(world);
    EXPECT_EQ(text.text[2], '1');
    EXPECT_EQ(values.front(), 1);
    EXPECT_EQ(values[kCount / 2], 1);
    EXPECT_EQ(values.back(), 17);
    world.barrier();
  });
}

TEST(ElasticState, OtherEntriesOnAnotherRankAreSaid) {
  run_ranks(2, [](int rank) {
    std::vector<float> values(rank == 0 ? 3 : 4);
    ElasticState state;
    state.add(values);
    auto world = init_process_group();
    const auto mismatch = thrown_by<MismatchError>([&] { state.sync(world); });
    ASSERT_TRUE(mismatch);
    EXPECT_THAT(mismatch->what(), HasSubstr("rank 0 has 1 of together 12 bytes, rank 1 has 1 of together 16 bytes"));
    world.barrier();
  });
}

TEST(ElasticState, ASyncThatFailsLeavesMemoryAndCommitAlone) {
  run_ranks(2, [](int rank) {
    std::int64_t value = 5;
    ElasticState state;
    state.add(value);
    state.commit();
    value = 6;
    auto world = init_process_group();
    if (rank == 1) return world.abort("the test says so");
    EXPECT_THROW(state.sync(world), RankFailure);
    EXPECT_EQ(value, 6);
    state.restore();
    EXPECT_EQ(value, 5);
    EXPECT_EQ(state.commits(), 1u);
  });
}

TEST(RunElastic, FailureOfARankReachesTheRankThatHasFinished) {
  struct TrainingFailed {};
  Shared<std::atomic<bool>> rank_0_has_finished;
  run_ranks(2, [&](int rank) {
    std::int64_t step = 0;
    ElasticState state;
    state.add(step);
    if (rank == 0) {
      EXPECT_THROW(run_elastic(state, [&](ProcessGroup) { *rank_0_has_finished = true; }), RankFailure);
      return;
    }
    const auto train = [&](ProcessGroup) {
      wait_until([&] { return rank_0_has_finished->load(); });
      throw TrainingFailed();
    };
    EXPECT_THROW(run_elastic(state, train), TrainingFailed);
  });
}

}  // namespace
}  // namespace ddp
