// Random calls on random worlds against a slow plain computation. DDP_COLLECTIVE_SEEDS=17 or =100-199 plays other
// seeds.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/collective_player.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/seccomp_filter.hpp"
#include "tests/simulation/dice.hpp"

namespace ddp {
namespace {

using simulation::Dice;
using testing::Batch;
using testing::Player;
using testing::RankProcesses;
using testing::Shared;

constexpr int kSizeMax = 16;
constexpr int kBatches = 14;
constexpr std::uint64_t kSeeds = 16;

struct World {
  int size = 1;
  std::vector<Batch> batches;
  std::size_t bytes = 0;  // of each memory that a batch needs
};

World draw_world(std::uint64_t seed) {
  Dice dice(seed);
  World world;
  world.size = 1 + static_cast<int>(seed % kSizeMax);  // so that a few seeds in a row have all sizes
  for (int i = 0; i < kBatches; ++i) {
    world.batches.push_back(testing::draw_batch(dice, world.size, {}));
    world.bytes = std::max(world.bytes, world.batches.back().bytes);
  }
  return world;
}

testing::RanksByHost all_on_one_host(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {ranks};
}

struct Checksums {
  std::array<std::atomic<std::uint64_t>, kSizeMax> all, common;  // by rank
  std::array<std::atomic<int>, kSizeMax> batches;                // that were right
};

// Who may not read other processes' memory.
enum class Denied { nobody, everybody, one_rank };

void play(const World& world, Denied denied, const Checksums* before, Shared<Checksums>& sums) {
  RankProcesses ranks(world.size, [&](int rank) {
    if (denied == Denied::everybody || (denied == Denied::one_rank && rank == world.size / 2))
      testing::refuse_system_call(SYS_process_vm_readv, EPERM);
    auto group = init_process_group();
    Player player(group, world.bytes, all_on_one_host(world.size));
    const auto own = static_cast<std::size_t>(rank);
    for (const Batch& batch : world.batches) {
      if (!player.play(batch)) return;
      ++sums->batches[own];
    }
    sums->all[own] = player.checksum();
    sums->common[own] = player.common_checksum();
  });
  for (int rank = 0; rank < world.size; ++rank) {
    ranks.expect_success(rank);
    const auto own = static_cast<std::size_t>(rank);
    EXPECT_EQ(sums->batches[own].load(), kBatches) << "rank " << rank << " went no further";
    EXPECT_EQ(sums->common[own].load(), sums->common[0].load()) << "ranks 0 and " << rank << " have other bits";
    if (!before) continue;
    EXPECT_EQ(sums->all[own].load(), before->all[own].load()) << "rank " << rank << " has other bits than before";
  }
}

std::vector<std::uint64_t> seeds() {
  std::uint64_t first = 1;
  std::uint64_t last = kSeeds;
  if (const char* const text = std::getenv("DDP_COLLECTIVE_SEEDS")) {
    char* rest = nullptr;
    first = last = std::strtoull(text, &rest, 10);
    if (*rest == '-') last = std::strtoull(rest + 1, nullptr, 10);
  }
  std::vector<std::uint64_t> all(last - first + 1);
  std::iota(all.begin(), all.end(), first);
  return all;
}

std::string replay(std::uint64_t seed) {
  return "replay: DDP_COLLECTIVE_SEEDS=" + std::to_string(seed) + " collective_random_test";
}

class RandomCollectives : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomCollectives, EqualAPlainComputationWithTheSameBitsOnAllRanksInEveryRun) {
  SCOPED_TRACE(replay(GetParam()));
  const World world = draw_world(GetParam());
  Shared<Checksums> first, second;
  play(world, Denied::nobody, nullptr, first);
  if (HasFailure()) return;
  play(world, Denied::nobody, &*first, second);
  if (HasFailure()) return;
  // The way that bytes take changes none of them.
  Shared<Checksums> apart;
  play(world, GetParam() % 2 == 0 ? Denied::everybody : Denied::one_rank, &*first, apart);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCollectives, ::testing::ValuesIn(seeds()),
                         [](const auto& seed) { return std::to_string(seed.param); });

// Each thread plays another world on a group of its own.
TEST(SeveralGroups, AtOnceFromSeveralThreadsKeepOutOfEachOthersWay) {
  constexpr int kSize = 4;
  testing::run_ranks(kSize, [](int) {
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(init_process_group());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      threads.emplace_back([&group = groups[i], i] {
        const World world = draw_world(kSizeMax * (100 + i) + kSize - 1);
        Player player(group, world.bytes, all_on_one_host(kSize));
        for (const Batch& batch : world.batches) {
          if (!player.play(batch)) return;
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

// The ranks that give a color, in the order of their keys.
struct Division {
  std::vector<int> colors, keys;  // by rank

  std::vector<int> members_of(int color) const {
    std::vector<int> members;
    for (int rank = 0; rank < static_cast<int>(colors.size()); ++rank) {
      if (colors[static_cast<std::size_t>(rank)] == color) members.push_back(rank);
    }
    const auto key_of = [&](int rank) { return keys[static_cast<std::size_t>(rank)]; };
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
    return members;
  }
};

Division draw_division(Dice& dice, int size) {
  Division division;
  for (int rank = 0; rank < size; ++rank) {
    division.colors.push_back(dice.between(-1, 2));
    division.keys.push_back(dice.between(-2, 2));
  }
  return division;
}

void play_world(ProcessGroup& group, std::uint64_t seed) {
  const World world = draw_world(seed * kSizeMax + static_cast<std::uint64_t>(group.size()) - 1);
  ASSERT_EQ(world.size, group.size());
  Player player(group, world.bytes, all_on_one_host(world.size));
  for (const Batch& batch : world.batches) ASSERT_TRUE(player.play(batch));
}

// A rank is in a group of its color, in one that was made by a list, and in that of all, and calls all three at once.
TEST(SubGroups, PlayBesideTheGroupThatTheyCameFrom) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int size = 2 + static_cast<int>(seed);
    testing::run_ranks(size, [&](int rank) {
      Dice dice(seed);
      auto group = init_process_group();
      const Division division = draw_division(dice, size);
      const int color = division.colors[static_cast<std::size_t>(rank)];
      auto of_color = group.split(color, division.keys[static_cast<std::size_t>(rank)]);
      const auto members = division.members_of(color);
      if (color < 0) {
        EXPECT_EQ(of_color.impl(), nullptr);
      } else {
        ASSERT_EQ(of_color.size(), static_cast<int>(members.size()));
        EXPECT_EQ(members[static_cast<std::size_t>(of_color.rank())], rank);
      }
      std::vector<int> all_but_one(static_cast<std::size_t>(size));  // from the last to the second
      std::iota(all_but_one.rbegin(), all_but_one.rend(), 0);
      all_but_one.pop_back();
      auto backwards = group.new_group(all_but_one);
      EXPECT_TRUE(rank == 0 || backwards.rank() == size - 1 - rank);

      std::vector<std::thread> threads;
      if (color >= 0)
        threads.emplace_back([&] { play_world(of_color, seed * 10 + static_cast<std::uint64_t>(color)); });
      if (rank > 0) threads.emplace_back([&] { play_world(backwards, seed * 10 + 5); });
      play_world(group, seed * 10 + 6);
      for (auto& thread : threads) thread.join();
    });
  }
}

}  // namespace
}  // namespace ddp
