// Ranks as threads of one process, so that ThreadSanitizer sees what one rank's data means to another.
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/arrivals/sleep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace ddp::cpu_backend {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Outcome::Kind;
using process_group::CollectiveKind;
using ::testing::ElementsAre;
using namespace std::chrono_literals;

constexpr auto kForEver = 60s;  // only a failing test waits for it

base::Deadline deadline_in(Clock::duration time) { return {Clock::now(), Clock::now() + time}; }

Outcome wait(Arrivals& of, Clock::duration time) {
  auto deadline = deadline_in(time);
  return of.wait(deadline);
}

// Expects that something ends the wait: a lost wake-up would show only by the time it takes.
Outcome wait(Arrivals& of) {
  const auto begin = Clock::now();
  Outcome outcome = wait(of, kForEver);
  EXPECT_LT(Clock::now() - begin, kForEver / 2) << "nobody woke it";
  return outcome;
}

void run_as_ranks(int size, const std::function<void(Arrivals&, int)>& body) {
  std::vector<RankControl> control(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Arrivals arrivals(control, rank);
      body(arrivals, rank);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Until the others look for this rank's thread in vain: about to sleep, or asleep.
void wait_for_sleeper(const RankControl& awaited) {
  while (awaited.sleepers.load() == 0) std::this_thread::yield();
}

TEST(RankPresence, WaitForNewsOfARankEndsByThemAndByWake) {
  std::vector<RankControl> control(2);
  std::vector<RankNote> notes(4);  // ranks 2 and 3 are on another host
  Arrivals leader(control, 0, {0, 1}, notes), waiting(control, 1, {0, 1}, notes);
  std::atomic<bool> is_over{false};
  const auto wait_for_rank_3 = [&] {
    std::thread thread([&] {
      const auto begin = Clock::now();
      waiting.presence().wait_until_noted(3, begin + kForEver, [&] { return is_over.load(); });
      EXPECT_LT(Clock::now() - begin, kForEver / 2) << "nobody woke it";
    });
    wait_for_sleeper(control[1]);
    return thread;
  };
  auto thread = wait_for_rank_3();
  leader.presence().note(2, {.rank = 2}, Trouble::lost);
  EXPECT_EQ(notes[3].trouble.load(), Trouble::none);
  is_over.store(true);
  waiting.presence().wake();
  thread.join();
  is_over.store(false);
  thread = wait_for_rank_3();
  leader.presence().note(3, {.rank = 3}, Trouble::lost);
  thread.join();
}

TEST(Arrivals, WhoGaveUpAfterItHadArrivedSpoilsThePhaseForThoseThatHaveNot) {
  std::vector<RankControl> control(3);
  Arrivals slow(control, 0), ahead(control, 1), present(control, 2);
  ahead.arrive();
  present.arrive();
  EXPECT_FALSE(slow.gave_up_ahead());
  ahead.presence().leave(Presence::aborted);  // and its memory may be anything now
  ASSERT_TRUE(slow.gave_up_ahead());
  EXPECT_EQ(slow.gave_up_ahead()->kind, Kind::lost);
  EXPECT_THAT(slow.gave_up_ahead()->ranks, ElementsAre(1));
  slow.presence().lose(2);
  EXPECT_THAT(slow.gave_up_ahead()->ranks, ElementsAre(1)) << "what a dead rank arrived with stays as it was";
}

TEST(Arrivals, WhoGaveUpForTheSakeOfAnotherIsNotNamed) {
  std::vector<RankControl> control(3);
  Arrivals slow(control, 0), aborted(control, 1), ahead(control, 2);
  ahead.arrive();
  aborted.presence().leave(Presence::aborted);
  EXPECT_FALSE(slow.gave_up_ahead()) << "arriving shows that";
  ahead.presence().leave(Presence::gave_up);
  ASSERT_TRUE(slow.gave_up_ahead());
  EXPECT_THAT(slow.gave_up_ahead()->ranks, ElementsAre(1));
}

TEST(Arrivals, WhoGaveUpForTheSakeOfOneThatHadArrivedIsNotNamed) {
  std::vector<RankControl> control(3);
  Arrivals slow(control, 0), aborted(control, 1), other(control, 2);
  aborted.arrive();
  aborted.presence().leave(Presence::aborted);
  other.presence().leave(Presence::gave_up);
  ASSERT_TRUE(slow.gave_up_ahead());
  EXPECT_THAT(slow.gave_up_ahead()->ranks, ElementsAre(1));
  slow.arrive();
  EXPECT_THAT(wait(slow).ranks, ElementsAre(1)) << "who waits already sees the same";
}

TEST(Arrivals, WhoLeavesWhenAllHaveArrivedSpoilsNothing) {
  std::vector<RankControl> control(2);
  Arrivals one(control, 0), other(control, 1);
  one.arrive();
  other.arrive();
  other.presence().leave(Presence::left);
  EXPECT_FALSE(one.gave_up_ahead());
  EXPECT_EQ(wait(one).kind, Kind::complete);
}

TEST(Arrivals, WhatARankWroteBeforeItArrivedIsSeenByAllAfter) {
  constexpr int kSize = 3;
  constexpr int kPhases = 3000;
  std::vector<int> written(kSize);  // plain memory: the phases alone keep ranks apart
  run_as_ranks(kSize, [&](Arrivals& arrivals, int rank) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      written[static_cast<std::size_t>(rank)] = phase;
      arrivals.arrive();
      ASSERT_EQ(wait(arrivals).kind, Kind::complete);
      for (const int value : written) ASSERT_EQ(value, phase);
      arrivals.arrive();
      ASSERT_EQ(wait(arrivals).kind, Kind::complete);
    }
  });
}

TEST(Arrivals, NoWakeUpIsLostBetweenLookingAndSleeping) {
  run_as_ranks(2, [&](Arrivals& arrivals, int rank) {
    std::mt19937_64 random(7);  // the same on both
    for (int phase = 0; phase < 300; ++phase) {
      // One rank is late by about as long as the other takes to fall asleep.
      const auto late = std::chrono::microseconds(800 + random() % 500);
      const auto end = Clock::now() + late;
      if (phase % 2 == rank) {
        while (Clock::now() < end) std::this_thread::yield();
      }
      arrivals.arrive();
      ASSERT_EQ(wait(arrivals).kind, Kind::complete) << "phase " << phase;
    }
  });
}

TEST(Sleep, ChangeBetweenLookAndSleepEndsTheSleep) {
  std::atomic<std::uint32_t> word{7}, sleepers{0};
  int waits = 0;
  const bool slept = sleep_unless_over(
      word, sleepers,
      [&]() -> std::optional<Clock::time_point> {
        EXPECT_EQ(sleepers.load(), 1u) << "the waker must see the sleeper from before the look";
        word.fetch_add(1);  // the change comes after this look
        return Clock::time_point::max();
      },
      [&](const std::atomic<std::uint32_t>& slept_on, std::uint32_t expected, Clock::time_point) {
        ++waits;
        EXPECT_EQ(sleepers.load(), 1u) << "the waker must see the sleeper until it is awake";
        EXPECT_NE(slept_on.load(), expected) << "the futex would sleep through the change";
      });
  EXPECT_TRUE(slept);
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(sleepers.load(), 0u);
}

TEST(Sleep, LookThatFindsTheEndPreventsTheSleep) {
  std::atomic<std::uint32_t> word{7}, sleepers{0};
  const auto look = []() -> std::optional<Clock::time_point> { return std::nullopt; };
  const auto wait = [](const auto&, std::uint32_t, Clock::time_point) { ADD_FAILURE() << "nothing would wake it"; };
  EXPECT_FALSE(sleep_unless_over(word, sleepers, look, wait));
  EXPECT_EQ(sleepers.load(), 0u);
}

// A word of a processor with a store buffer: other cores see a store at once only if it is sequentially consistent.
// Else later loads of the same core may come first.
struct BufferedWord {
  void store(std::uint64_t value, std::memory_order order = std::memory_order_seq_cst) {
    if (order == std::memory_order_seq_cst) visible = value;
  }

  std::uint64_t visible = 0;
};

// A count of sleepers that another rank raises just after it was read.
struct CountRaisedAfterLoad {
  std::uint32_t load(std::memory_order order = std::memory_order_seq_cst) const {
    EXPECT_EQ(order, std::memory_order_seq_cst) << "a weaker load may come before the store";
    sleeper_looks();
    return 0;
  }

  std::function<void()> sleeper_looks;
};

TEST(Sleep, SleeperThatTheWakerMissesSeesTheChange) {
  BufferedWord arrived;
  int looks = 0;
  const CountRaisedAfterLoad sleepers{[&] {
    ++looks;
    EXPECT_EQ(arrived.visible, 5u) << "nobody would wake this sleeper";
  }};
  EXPECT_FALSE(store_and_find_sleepers(arrived, std::uint64_t{5}, sleepers));
  EXPECT_EQ(looks, 1);
}

TEST(Sleep, WakerFindsTheSleeper) {
  std::atomic<std::uint64_t> arrived{0};
  const std::atomic<std::uint32_t> nobody{0}, one{1};
  EXPECT_FALSE(store_and_find_sleepers(arrived, 5u, nobody));
  EXPECT_TRUE(store_and_find_sleepers(arrived, 6u, one));
  EXPECT_EQ(arrived.load(), 6u);
}

TEST(Arrivals, EveryRankSeesWhatAllCalled) {
  constexpr int kSize = 3;
  run_as_ranks(kSize, [&](Arrivals& arrivals, int rank) {
    for (std::uint64_t call = 1; call <= 1000; ++call) {
      arrivals.posts().post({.kind = CollectiveKind::broadcast, .root = rank, .count = call});
      arrivals.arrive();
      ASSERT_EQ(wait(arrivals).kind, Kind::complete);
      const auto& posted = arrivals.posts().posted();
      for (int other = 0; other < kSize; ++other) {
        ASSERT_EQ(posted[static_cast<std::size_t>(other)].root, other);
        ASSERT_EQ(posted[static_cast<std::size_t>(other)].count, call);
      }
    }
    EXPECT_EQ(arrivals.posts().calls(rank), 1000u);
    EXPECT_EQ(arrivals.posts().last_call(rank).count, 1000u);
  });
}

// A rank's memory in two halves of plain memory, as Staging has them: the phases alone keep ranks apart.
using Halves = std::array<std::vector<std::uint64_t>, 2>;

constexpr std::uint64_t word_of(int rank, std::uint64_t phase, std::size_t i) {
  return phase * 1000 + static_cast<std::uint64_t>(rank) * 10 + i;
}

// Calls of one phase, in which a rank hands out what is in its line and in one half of its memory and goes on at once,
// between calls of several, in each of which it does the same: none of it changes while another rank still reads it.
TEST(Arrivals, WhatBelongsToAPhaseStaysUntilAllHaveEnteredTheNext) {
  constexpr int kSize = 3;
  constexpr std::size_t kWords = 9;
  std::vector<Halves> memory(kSize, Halves{std::vector<std::uint64_t>(kWords), std::vector<std::uint64_t>(kWords)});
  run_as_ranks(kSize, [&](Arrivals& arrivals, int rank) {
    std::mt19937_64 random(11);  // the same on all
    std::uint64_t phase = 0;
    for (std::uint64_t call = 1; call <= 1500; ++call) {
      const std::uint64_t phases = random() % 3 == 0 ? 1 + random() % 4 : 1;
      arrivals.posts().post({.kind = CollectiveKind::broadcast, .root = rank, .count = call}, word_of(rank, call, 0));
      const std::array<std::uint64_t, 2> data{word_of(rank, call, 1), word_of(rank, call, 2)};
      arrivals.posts().put_data(data.data(), sizeof(data));
      for (std::uint64_t i = 0; i < phases; ++i) {
        ++phase;
        auto& own = memory[static_cast<std::size_t>(rank)][static_cast<std::size_t>(arrivals.next_half())];
        for (std::size_t word = 0; word < kWords; ++word) own[word] = word_of(rank, phase, word);
        arrivals.arrive();
        ASSERT_EQ(wait(arrivals).kind, Kind::complete);
        if ((phase + static_cast<std::uint64_t>(rank)) % 7 == 0) std::this_thread::yield();  // some read late
        for (int other = 0; other < kSize; ++other) {
          const auto& theirs =
              memory[static_cast<std::size_t>(other)][static_cast<std::size_t>(arrivals.present_half())];
          for (std::size_t word = 0; word < kWords; ++word) ASSERT_EQ(theirs[word], word_of(other, phase, word));
          std::array<std::uint64_t, 2> seen{};
          arrivals.posts().get_data(other, seen.data(), sizeof(seen));
          ASSERT_THAT(seen, ElementsAre(word_of(other, call, 1), word_of(other, call, 2)));
          ASSERT_EQ(arrivals.posts().address(other), word_of(other, call, 0));
          ASSERT_EQ(arrivals.posts().posted()[static_cast<std::size_t>(other)].count, call);
        }
      }
    }
  });
}

class TwoRanks : public ::testing::Test {
 protected:
  std::vector<RankControl> control_ = std::vector<RankControl>(2);
  Arrivals rank_0_{control_, 0};
  Arrivals rank_1_{control_, 1};
};

TEST_F(TwoRanks, ALossEndsASleep) {
  rank_0_.arrive();
  std::thread watcher([&] {
    wait_for_sleeper(control_[1]);
    rank_0_.presence().lose(1);
  });
  const Outcome outcome = wait(rank_0_);
  watcher.join();
  EXPECT_EQ(outcome.kind, Kind::lost);
  EXPECT_THAT(outcome.ranks, ElementsAre(1));
}

TEST_F(TwoRanks, ARankThatLeavesEndsASleep) {
  rank_0_.arrive();
  std::thread other([&] {
    wait_for_sleeper(control_[1]);
    rank_1_.presence().leave(Presence::aborted);
  });
  const Outcome outcome = wait(rank_0_);
  other.join();
  EXPECT_EQ(outcome.kind, Kind::lost);
  EXPECT_THAT(outcome.ranks, ElementsAre(1));
  EXPECT_EQ(rank_0_.presence().of(1), Presence::aborted);
  rank_1_.presence().leave(Presence::left);
  EXPECT_EQ(rank_0_.presence().of(1), Presence::aborted) << "the first word counts";
}

TEST_F(TwoRanks, AnInterruptEndsASleepAndLaterWaits) {
  rank_0_.arrive();
  std::thread other([&] {
    wait_for_sleeper(control_[1]);
    rank_0_.presence().interrupt();
  });
  EXPECT_EQ(wait(rank_0_).kind, Kind::interrupted);
  other.join();
  EXPECT_EQ(wait(rank_0_).kind, Kind::interrupted);
}

TEST_F(TwoRanks, AnInterruptIsABetterReasonThanTheLossesThatFollowIt) {
  rank_0_.arrive();
  rank_0_.presence().lose(1);
  rank_0_.presence().interrupt();
  EXPECT_EQ(wait(rank_0_).kind, Kind::interrupted);
  rank_1_.arrive();
  EXPECT_EQ(wait(rank_0_).kind, Kind::complete);
}

TEST_F(TwoRanks, WhoHasArrivedIsNotMissed) {
  rank_1_.arrive();
  rank_1_.presence().leave(Presence::left);
  rank_0_.presence().lose(1);
  rank_0_.arrive();
  EXPECT_EQ(wait(rank_0_).kind, Kind::complete);
  rank_0_.arrive();
  EXPECT_EQ(wait(rank_0_).kind, Kind::lost) << "but is in the next phase";
}

TEST_F(TwoRanks, ADeadlineNamesThoseWhoHaveNotArrived) {
  rank_0_.arrive();
  const Outcome outcome = wait(rank_0_, 5ms);
  EXPECT_EQ(outcome.kind, Kind::timed_out);
  EXPECT_THAT(outcome.ranks, ElementsAre(1));
}

TEST_F(TwoRanks, AfterTheDeadlineAnArrivalStillCounts) {
  rank_0_.arrive();
  rank_1_.arrive();
  EXPECT_EQ(wait(rank_0_, -1s).kind, Kind::complete);
}

TEST(Arrivals, ALossElsewhereWakesWhoSleepsForAnother) {
  std::vector<RankControl> control(3);
  Arrivals rank_0(control, 0);
  Arrivals rank_2(control, 2);
  rank_0.arrive();
  std::thread other([&] {
    wait_for_sleeper(control[1]);
    rank_2.presence().leave(Presence::left);
  });
  const Outcome outcome = wait(rank_0);
  other.join();
  EXPECT_EQ(outcome.kind, Kind::lost);
  EXPECT_THAT(outcome.ranks, ElementsAre(2));
}

TEST(Arrivals, TheLossOfOneWhoHasArrivedSpoilsNothing) {
  std::vector<RankControl> control(3);
  Arrivals rank_0(control, 0);
  Arrivals rank_1(control, 1);
  Arrivals rank_2(control, 2);
  rank_0.arrive();
  rank_1.arrive();
  std::thread others([&] {
    wait_for_sleeper(control[2]);
    rank_0.presence().lose(1);
    rank_2.arrive();
  });
  EXPECT_EQ(wait(rank_0).kind, Kind::complete);
  others.join();
}

}  // namespace
}  // namespace ddp::cpu_backend
