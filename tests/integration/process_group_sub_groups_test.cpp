// Groups that are made of a group: who is in them, that they work beside each other, and how a split fails.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

// The ranks of the world that are in a group, in its order, as its collectives have them.
std::vector<std::int64_t> members(ProcessGroup& group, int world_rank) {
  const std::vector<std::int64_t> own{world_rank};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(own, all);
  return all;
}

// Sums in plain memory, in registered memory, and in what is larger than any staging.
void expect_sums(ProcessGroup& group) {
  const std::int64_t sum = group.size() * (group.size() - 1) / 2;
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{200'001}}) {
    std::vector<std::int64_t> plain(count, group.rank());
    group.all_reduce(plain);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), sum), static_cast<std::ptrdiff_t>(count));
    const auto memory = group.allocate(count * sizeof(std::int64_t));
    auto* const values = static_cast<std::int64_t*>(memory.data());
    std::fill_n(values, count, group.rank());
    group.all_reduce({values, count});
    EXPECT_EQ(std::count(values, values + count, sum), static_cast<std::ptrdiff_t>(count));
  }
}

struct Choice {
  int color, key;
};

// What every rank chooses, drawn alike on all of them.
std::vector<Choice> draw(std::mt19937& dice, int size) {
  std::vector<Choice> choices;
  for (int rank = 0; rank < size; ++rank) {
    choices.push_back({static_cast<int>(dice() % 4) - 1, static_cast<int>(dice() % 5) - 2});
  }
  return choices;
}

std::vector<std::int64_t> members_of(const std::vector<Choice>& choices, int color) {
  std::vector<std::pair<int, std::int64_t>> keyed;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) keyed.emplace_back(choices[rank].key, rank);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<std::int64_t> ranks;
  for (const auto& each : keyed) ranks.push_back(each.second);
  return ranks;
}

class SplitOf : public ::testing::TestWithParam<int> {};

TEST_P(SplitOf, MakesTheGroupsThatColorsAndKeysSay) {
  const int size = GetParam();
  run_ranks(size, [size](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    std::mt19937 dice(static_cast<unsigned>(size));
    for (int round = 0; round < 6; ++round) {
      const auto choices = draw(dice, size);
      const Choice own = choices[static_cast<std::size_t>(rank)];
      auto group = world.split(own.color, own.key);
      if (own.color < 0) {
        EXPECT_EQ(group.impl(), nullptr);
        continue;
      }
      EXPECT_EQ(members(group, rank), members_of(choices, own.color));
      EXPECT_EQ(group.timeout(), kNotForEver);
      EXPECT_EQ(group.round(), world.round());
      EXPECT_EQ(group.local_rank(), world.local_rank());
      expect_sums(group);
    }
    expect_sums(world);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SplitOf, ::testing::Values(1, 2, 3, 5, 8));

TEST(NewGroup, HasTheRanksOfTheListInItsOrder) {
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    auto three = world.new_group({3, 0, 1});
    ASSERT_EQ(three.impl() == nullptr, rank == 2);
    if (rank != 2) {
      EXPECT_THAT(members(three, rank), ElementsAre(3, 0, 1));
    }
    thrown_by<MismatchError>([&] { world.new_group(rank == 1 ? std::vector{0, 1} : std::vector{1, 0}); });
    expect_sums(world);  // it goes on
  });
}

TEST(NewGroup, OfSubGroupsOutlivesTheGroupsItCameFrom) {
  run_ranks(6, [](int rank) {
    auto world = std::make_optional(init_process_group({.timeout = kNotForEver}));
    auto half = std::make_optional(world->split(rank % 2));   // 0 2 4, 1 3 5
    auto pair = std::make_optional(half->new_group({2, 0}));  // 4 0, 5 1
    ASSERT_EQ(pair->impl() == nullptr, rank == 2 || rank == 3);
    if (rank != 2 && rank != 3) {
      auto last = pair->split(0);
      world->barrier();
      world.reset();
      half.reset();
      EXPECT_THAT(members(*pair, rank), ElementsAre(rank % 2 + 4, rank % 2));
      EXPECT_THAT(members(last, rank), ElementsAre(rank % 2 + 4, rank % 2));
      return expect_sums(last);
    }
    world->barrier();
  });
}

TEST(SubGroups, WorkAtOnceFromSeveralThreads) {
  constexpr int kThreads = 4;
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    std::vector<ProcessGroup> groups{world};
    groups.push_back(world.split(0, -rank));
    groups.push_back(world.split(rank / 2));
    groups.push_back(world.split(rank % 2));
    std::vector<std::thread> threads;
    std::array<std::string, kThreads> errors;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      threads.emplace_back([&group = groups[i], &error = errors[i], i] {
        try {
          for (int call = 0; call < 200; ++call) {
            std::vector<std::int64_t> values(1 + 997 * i, static_cast<std::int64_t>(i + 1));
            auto work = group.all_reduce_async(values);
            work.wait();
            const auto want = static_cast<std::int64_t>(i + 1) * group.size();
            if (std::count(values.begin(), values.end(), want) != static_cast<std::ptrdiff_t>(values.size())) {
              error = "a wrong sum";
            }
            if (call % 50 == 0 && group.split(0).size() != group.size()) error = "a wrong split";
          }
        } catch (const std::exception& thrown) {
          error = thrown.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) EXPECT_EQ(error, "");
  });
}

// Whether it lies in memory that the ranks of a host share.
bool is_shared(const void* data) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    if (begin <= at && at < end) return line.find("memfd:ddp") != std::string::npos;
  }
  return false;
}

TEST(SubGroups, TrainOnGradientsInTheirRegisteredMemory) {
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    auto pair = world.split(rank / 2);
    std::vector<float> weights(1000, 1.0F);
    std::vector<float> bias(7, 1.0F);
    DistributedDataParallel model(pair, {{"weights", {1000}, weights}, {"bias", {7}, bias}});
    for (int step_count = 0; step_count < 3; ++step_count) {
      auto step = model.begin_step();
      for (std::size_t i = 0; i < model.parameter_count(); ++i) {
        const MemoryRange gradient = model.gradient(i);
        EXPECT_TRUE(is_shared(gradient.data));
        std::fill_n(static_cast<float*>(gradient.data), gradient.count, static_cast<float>(rank));
        step.ready(i);
      }
      step.finish();
      for (std::size_t i = 0; i < model.parameter_count(); ++i) {
        const MemoryRange gradient = model.gradient(i);
        const auto* const values = static_cast<const float*>(gradient.data);
        const float mean = static_cast<float>(rank / 2 * 2) + 0.5F;
        EXPECT_EQ(std::count(values, values + gradient.count, mean), static_cast<std::ptrdiff_t>(gradient.count));
      }
    }
  });
}

// A failure of one group is none of another's, unless they share the rank that failed.
TEST(Failure, OfOneGroupLeavesTheOthersAsTheyAre) {
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    auto pair = world.split(rank / 2);
    if (rank == 3) pair.abort("rank 3 has had enough");
    if (rank == 2) {
      const auto error = thrown_by<RankFailure>([&] { pair.barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      EXPECT_THAT(error->what(), HasSubstr("rank 0 of 2"));
    }
    if (rank < 2) expect_sums(pair);
    expect_sums(world);
  });
}

TEST(Death, IsNoticedInEveryGroupThatTheRankWasIn) {
  RankProcesses ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    auto with_last = world.split(rank == 0 ? -1 : 0);
    auto without = world.split(rank == 3 ? -1 : 0);
    world.barrier();
    if (rank == 3) std::raise(SIGKILL);
    if (rank > 0) {
      const auto error = thrown_by<RankFailure>([&] { with_last.barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(2));
    }
    expect_sums(without);
    const auto error = thrown_by<RankFailure>([&] { world.barrier(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(3));
  });
  ranks.expect_killed(3);
  for (const int rank : {0, 1, 2}) ranks.expect_success(rank);
}

// Whenever in the split it happens: the others throw an error, or have a group that then fails.
TEST(Death, DuringASplitLeavesNobodyWaiting) {
  for (int round = 0; round < 20; ++round) {
    Shared<std::atomic<int>> begun;
    RankProcesses ranks(3, [&](int) {
      auto world = init_process_group({.timeout = kNotForEver});
      world.barrier();
      ++*begun;
      thrown_by<RankFailure>([&] {
        for (;;) {
          auto group = world.split(0);
          auto other = world.split(world.rank() == 0 ? 0 : 1);
        }
      });
      thrown_by<AbortedError>([&] { world.split(0); });
    });
    wait_until([&] { return begun->load() == 3; });
    std::this_thread::sleep_for(std::chrono::microseconds(317 * round));
    ranks.kill(1);
    ranks.expect_killed(1);
    ranks.expect_success(0);
    ranks.expect_success(2);
  }
}

TEST(Timeout, OfASplitNamesWhoDidNotCome) {
  Shared<std::atomic<int>> timed_out;
  run_ranks(4, [&](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    world.barrier();
    if (rank % 2 == 1) return wait_until([&] { return timed_out->load() == 2; });
    const auto error = thrown_by<TimeoutError>([&] { world.split(0, 0, {.timeout = milliseconds(2'000)}); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 3));
    EXPECT_THAT(error->what(), HasSubstr("split, call "));
  });
}

// Be it one that moves as much in the same way.
TEST(Mismatch, OfASplitAndAnotherCallIsTold) {
  const struct {
    std::string name;
    std::function<void(ProcessGroup& world)> call;
  } others[] = {
      {"barrier", [](ProcessGroup& world) { world.barrier(); }},
      {"all_gather of 2 int64 per rank",
       [](ProcessGroup& world) {
         std::vector<std::int64_t> own(2), all(4);
         world.all_gather(own, all);
       }},
      {"new_group",
       [](ProcessGroup& world) {
         world.new_group({0, 1});
       }},
  };
  for (const auto& other : others) {
    SCOPED_TRACE(other.name);
    run_ranks(2, [&](int rank) {
      auto world = init_process_group({.timeout = kNotForEver});
      const auto error =
          thrown_by<MismatchError>([&] { rank == 0 ? static_cast<void>(world.split(0)) : other.call(world); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("rank 0 called split, rank 1 called " + other.name));
    });
  }
}

TEST(Abort, FromAnotherThreadEndsASplit) {
  Shared<std::atomic<bool>> is_over;
  run_ranks(2, [&](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    world.barrier();
    if (rank == 1) return wait_until([&] { return is_over->load(); });
    std::thread other([&] { world.abort("no more"); });
    thrown_by<AbortedError>([&] { world.split(0); });
    other.join();
    *is_over = true;
  });
}

std::size_t open_files() {
  const auto begin = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

std::size_t open_sockets() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("socket:") != std::string::npos) ++count;
  }
  return count;
}

TEST(Resources, ASubGroupKeepsItsFileAndPidfdsOnlyAndGivesThemBack) {
  run_ranks(3,
            [](int) {
              auto world = init_process_group({.timeout = kNotForEver});
              { auto first = world.split(0); }
              const std::size_t files = open_files();
              const std::size_t sockets = open_sockets();
              const std::size_t pidfds = testing::open_pidfds();
              {
                auto group = world.split(0);
                EXPECT_EQ(open_sockets(), sockets);
                EXPECT_EQ(testing::open_pidfds(), pidfds + 2);
                EXPECT_EQ(open_files(), files + 6)
                    << "the file, two pidfds, and three of the system that threads wake and sleep by";
              }
              for (int i = 0; i < 50; ++i) auto group = world.split(0);
              EXPECT_EQ(open_files(), files);
            });
}

TEST(Resources, ThatOneRankLacksAreAnErrorOnAllAndTheGroupGoesOn) {
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    for (const int poor : {1, 2}) {  // one leads its new group, one does not
      int failures = 0;
      // From no descriptor at all up to enough: it fails at another step each time.
      for (rlim_t spare = 0; spare < 12; ++spare) {
        if (rank == poor) {
          const rlimit limit{open_files() - 1 + spare, before.rlim_max};
          ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
        }
        std::optional<ProcessGroup> group;
        try {
          group = world.split(rank == 0 ? 0 : 1);
        } catch (const Error& error) {
          ++failures;
          EXPECT_THAT(error.what(),
                      AllOf(HasSubstr("can't be part of a new group: "), HasSubstr("a split of the process group")));
        }
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
        if (group) expect_sums(*group);
        const std::int64_t failures_of_all = members(world, failures).front();
        EXPECT_EQ(failures, failures_of_all) << "on all ranks or on none";
        expect_sums(world);
      }
      EXPECT_GE(failures, 5);
      EXPECT_LT(failures, 12) << "it was to succeed in the end";
    }
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these map memory of their own
std::size_t mapped_pages() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(Resources, ARankThatCanMapNoMoreTellsTheOthersAndTheGroupGoesOn) {
  run_ranks(4, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    for (const int poor : {1, 2}) {  // one leads its new group, one does not
      // What the group is made of takes a few pages, and then more than there are.
      for (std::size_t spare = 0; spare < 6; ++spare) {
        if (rank == poor) {
          const rlimit limit{(mapped_pages() + spare) * page_bytes, before.rlim_max};
          ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
        }
        const auto error = thrown_by<Error>([&] { world.split(rank == 0 ? 0 : 1); });
        ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
        ASSERT_TRUE(error);
        EXPECT_THAT(error->what(), HasSubstr("can't be part of a new group: "));
        expect_sums(world);
      }
    }
  });
}
#endif

// How long a split takes is printed, not asserted: a test must not fail on a slow machine.
TEST(Time, OfASplit) {
  run_ranks(8, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    constexpr int kSplits = 20;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSplits; ++i) auto group = world.split(rank % 2);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (rank == 0) std::printf("8 ranks: %.2f ms for a split into two and its end\n", took.count() / kSplits);
  });
}

}  // namespace
}  // namespace ddp
