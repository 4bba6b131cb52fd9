// Ranks that are killed, stopped or abort at a random point of random collectives, again and again: the others hear of
// it, nothing of theirs leaks, and what is left of them meets anew, without the one that may go on later.
//
// DDP_CHAOS_FAULTS=1000 brings about so many (default: as many as fit into 30 s), DDP_CHAOS_SEED=17 begins with another
// history. Times are printed, not asserted: a test must not fail on a slow machine.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/collective_player.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/simulation/dice.hpp"

namespace ddp {
namespace {

using simulation::Dice;
using testing::Player;
using testing::RankProcesses;
using testing::Shared;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kSizeMax = 8;
constexpr auto kTimeout = std::chrono::seconds(2);  // of calls where a rank is stopped
// Of all other calls: longer than ctest lets the test run, so only a notice of the failure can end a call.
constexpr auto kTimeoutOtherwise = std::chrono::hours(1);
constexpr testing::Limits kLimits{.bytes_max = 1u << 20, .all_bytes_max = 4u << 20, .work_max = 2'000'000};
constexpr std::size_t kMemoryBytes = 3u << 20;  // what a batch within these limits needs, at most

enum class Fault { killed, stopped, aborted, paused_and_killed };
constexpr std::array kNames{"SIGKILL", "SIGSTOP", "abort()", "SIGSTOP, SIGCONT, SIGKILL"};

// What ends a group, which then goes on without `victim`, its rank.
struct Act {
  Fault fault = Fault::killed;
  int victim = 0;
  int after = 1;           // batches that all have played
  microseconds delay{0};   // and so much later
  std::uint64_t seed = 0;  // of the batches
};

struct History {
  int size = 2;
  std::vector<Act> acts;
};

History draw_history(std::uint64_t seed) {
  Dice dice(seed);
  History history;
  history.size = dice.between(2, static_cast<int>(kSizeMax));
  for (int size = history.size; size > 1; --size) {
    Act act;
    const auto draw = dice.below(100);
    act.fault = draw < 45   ? Fault::killed
                : draw < 75 ? Fault::aborted
                : draw < 85 ? Fault::paused_and_killed
                            : Fault::stopped;
    act.victim = static_cast<int>(dice.below(static_cast<std::uint64_t>(size)));
    act.after = dice.between(1, 6);
    act.delay = dice.between(microseconds(0), dice.chance(80) ? microseconds(3000) : microseconds(30'000));
    act.seed = dice.below(std::uint64_t{1} << 60);
    history.acts.push_back(act);
  }
  return history;
}

// What the test and its ranks tell each other; ranks by their number at the start, groups by the act that ends them.
struct Stage {
  struct Group {
    std::array<std::atomic<int>, kSizeMax> batches;
    std::atomic<Clock::rep> fault_at;
    std::array<std::atomic<Clock::rep>, kSizeMax> caught_at;
    std::atomic<int> others_blamed;  // ranks that were told of another than the victim
  };
  std::array<Group, kSizeMax> groups;
  std::atomic<bool> is_over, has_failed;
  sem_t news;  // somebody has changed something here
};

void tell(Stage& stage) { ::sem_post(&stage.news); }

void wait_for(Stage& stage, const std::function<bool()>& condition) {
  timespec end{};
  ::clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += testing::kPatience.count();
  while (!condition()) {
    if (stage.has_failed) throw std::runtime_error("a rank has failed");
    if (::sem_timedwait(&stage.news, &end) != 0 && errno != EINTR)
      throw std::runtime_error("waited in vain for the ranks");
  }
}

// What this process has that a group could leave behind.
struct Held {
  std::ptrdiff_t files = 0, threads = 0, shared_mappings = 0;
};

Held held() {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
  };
  Held held{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held.shared_mappings += line.find("memfd:") != std::string::npos;
  return held;
}

void expect_held(const Held& before) {
  testing::wait_until(
      [&] { return held().threads <= before.threads; });  // one that was joined is listed a little longer
  const Held now = held();
  EXPECT_EQ(now.files, before.files);
  EXPECT_EQ(now.shared_mappings, 0);
}

// One rank of a history.
class Survivor {
 public:
  Survivor(const History& history, int number, Shared<Stage>& stage, int abort_pipe)
      : history_(history),
        number_(number),
        stage_(stage),
        abort_pipe_(abort_pipe),
        members_(static_cast<std::size_t>(history.size)) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  // The director hears of a failure at once: the rest would wait for this rank in vain.
  void run() {
    const auto tell_failure = [this](bool has_failed) {
      if (has_failed) stage_->has_failed = true;
      tell(*stage_);
    };
    try {
      play_all();
    } catch (...) {
      tell_failure(true);
      throw;
    }
    tell_failure(::testing::Test::HasFailure());
  }

 private:
  void play_all() {
    join(0);
    play_once();
    const Held before = held();
    for (std::size_t i = 0; i < history_.acts.size(); ++i) {
      const Act& act = history_.acts[i];
      join(i + 1);
      const bool is_victim = members_[static_cast<std::size_t>(act.victim)] == number_;
      play_until_it_ends(act, stage_->groups[i], is_victim);
      expect_held(before);
      if (is_victim || ::testing::Test::HasFailure()) return;
      members_.erase(members_.begin() + act.victim);
    }
    join(history_.acts.size() + 1);
    play_alone();
    expect_held(before);
  }

  int rank() const { return static_cast<int>(std::find(members_.begin(), members_.end(), number_) - members_.begin()); }
  testing::RanksByHost all() const {
    std::vector<int> ranks(members_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return {ranks};
  }

  // Takes the environment that a launcher would give to what is left.
  void join(std::size_t round) {
    const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
    set("RANK", std::to_string(rank()));
    set("WORLD_SIZE", std::to_string(members_.size()));
    set("DDPRUN_ROUND_ID", to_string(RoundId{1, 1, static_cast<std::uint32_t>(round)}));
  }

  // So that whatever a process makes once is there before anything is counted.
  void play_once() {
    auto group = init_process_group();
    Player player(group, kMemoryBytes, all());
    Dice dice(1);
    player.play(draw_batch(dice, group.size(), kLimits));
    group.barrier();
  }

  void play_until_it_ends(const Act& act, Stage::Group& told, bool is_victim) {
    CollectiveOptions options;
    options.timeout = act.fault == Fault::stopped ? milliseconds(kTimeout) : milliseconds(kTimeoutOtherwise);
    auto group = init_process_group();
    Player player(group, kMemoryBytes, all());
    const auto own = static_cast<std::size_t>(number_);
    std::thread aborter;
    if (is_victim && act.fault == Fault::aborted) aborter = std::thread([&] { abort_when_told(group, told); });
    try {
      player.set_options(options);
      Dice dice(act.seed);
      while (player.play(draw_batch(dice, group.size(), kLimits))) {
        ++told.batches[own];
        tell(*stage_);
      }
    } catch (const Error& error) {
      told.caught_at[own] = Clock::now().time_since_epoch().count();
      is_victim ? check_victims(error, act) : check(error, act, told);
    }
    if (aborter.joinable()) {
      aborter.join();
      await_director();  // the others are to hear of the abort, not of this process's end
    }
    tell(*stage_);
  }

  void await_director() const {
    char byte = 0;
    while (::read(abort_pipe_, &byte, 1) < 0 && errno == EINTR) {
    }
  }

  void abort_when_told(ProcessGroup& group, Stage::Group& told) const {
    await_director();
    told.fault_at = Clock::now().time_since_epoch().count();
    group.abort("as drawn");
  }

  static void check_victims(const Error& error, const Act& act) {
    const bool is_aborted = dynamic_cast<const AbortedError*>(&error) != nullptr;
    EXPECT_TRUE(is_aborted || act.fault != Fault::aborted) << error.what();
  }

  // One that has heard of another survivor before it heard of the victim names that one, too.
  static void check(const Error& error, const Act& act, Stage::Group& told) {
    std::vector<int> blamed;
    if (const auto* const late = dynamic_cast<const TimeoutError*>(&error)) {
      EXPECT_EQ(act.fault, Fault::stopped) << error.what();
      blamed = late->ranks();
    } else if (const auto* const lost = dynamic_cast<const RankFailure*>(&error)) {
      blamed = lost->ranks();
      // A stopped rank has not ended, so only the deadline tells of it.
      if (act.fault == Fault::stopped) {
        EXPECT_THAT(blamed, ::testing::Not(::testing::Contains(act.victim))) << error.what();
      }
    } else {
      ADD_FAILURE() << "another error: " << error.what();
    }
    if (blamed != std::vector{act.victim}) ++told.others_blamed;
  }

  void play_alone() {
    auto group = init_process_group();
    Player player(group, kMemoryBytes, all());
    Dice dice(2);
    while (!stage_->is_over && player.play(draw_batch(dice, 1, kLimits))) {
    }
  }

  const History& history_;
  int number_;
  Shared<Stage>& stage_;
  int abort_pipe_;
  std::vector<int> members_;  // by rank: their numbers
};

struct OfFault {
  std::vector<double> times;  // milliseconds to the error of another rank
  int others_blamed = 0;      // errors that do not name the victim alone
};
using Seen = std::map<Fault, OfFault>;

// Brings about the faults of a history.
class Director {
 public:
  Director(const History& history, Seen& seen)
      : history_(history), seen_(seen), members_(static_cast<std::size_t>(history.size)) {
    std::iota(members_.begin(), members_.end(), 0);
    ::sem_init(&stage_->news, 1, 0);
    if (::pipe(abort_pipe_.data()) != 0) throw std::runtime_error("pipe failed");
  }
  ~Director() {
    ::close(abort_pipe_[0]);
    ::close(abort_pipe_[1]);
  }

  void run() {
    RankProcesses ranks(history_.size,
                        [this](int number) { Survivor(history_, number, stage_, abort_pipe_[0]).run(); });
    std::optional<int> stopped;
    for (std::size_t i = 0; i < history_.acts.size(); ++i) {
      const Act& act = history_.acts[i];
      wait_for_batches(i, 1);
      if (stopped) wake(ranks, *stopped, i);
      wait_for_batches(i, act.after);
      const int victim = members_[static_cast<std::size_t>(act.victim)];
      ::usleep(static_cast<useconds_t>(act.delay.count()));  // the point that was drawn
      strike(ranks, act, i, victim);
      members_.erase(members_.begin() + act.victim);
      note_times(act, i);
      stopped = act.fault == Fault::stopped ? std::optional(victim) : std::nullopt;
      if (act.fault != Fault::aborted) continue;
      tell_victim();
      ranks.expect_success(victim);
    }
    if (stopped) {
      ranks.go_on(*stopped);
      ranks.expect_success(*stopped);
    }
    stage_->is_over = true;
    ranks.expect_success(members_.front());
  }

 private:
  void wait_for_batches(std::size_t act, int more) {
    std::vector<int> wanted;
    for (const int number : members_)
      wanted.push_back(stage_->groups[act].batches[static_cast<std::size_t>(number)] + more);
    wait_for(*stage_, [&] {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (stage_->groups[act].batches[static_cast<std::size_t>(members_[i])] < wanted[i]) return false;
      }
      return true;
    });
  }

  // The one that was stopped writes where it was about to, while the others play on without it.
  void wake(RankProcesses& ranks, int number, std::size_t act) {
    ranks.go_on(number);
    ranks.expect_success(number);
    wait_for_batches(act, 1);
  }

  void strike(RankProcesses& ranks, const Act& act, std::size_t i, int victim) {
    Stage::Group& told = stage_->groups[i];
    if (act.fault == Fault::aborted) return tell_victim();
    if (act.fault == Fault::paused_and_killed) {
      ranks.stop(victim);
      ::usleep(static_cast<useconds_t>(act.delay.count()));
      ranks.go_on(victim);
      wait_for_batches(i, 1);  // a pause is no failure
    }
    told.fault_at = Clock::now().time_since_epoch().count();
    if (act.fault == Fault::stopped) return ranks.stop(victim);
    ranks.kill(victim);
    ranks.expect_killed(victim);
  }

  void tell_victim() {
    if (::write(abort_pipe_[1], "", 1) != 1) throw std::runtime_error("the victim can't be told");
  }

  void note_times(const Act& act, std::size_t i) {
    const Stage::Group& told = stage_->groups[i];
    for (const int number : members_) {
      const auto& caught = told.caught_at[static_cast<std::size_t>(number)];
      wait_for(*stage_, [&] { return caught != 0; });
      const auto took =
          Clock::duration(caught - told.fault_at) - (act.fault == Fault::stopped ? kTimeout : Clock::duration{0});
      seen_[act.fault].times.push_back(std::chrono::duration<double, std::milli>(took).count());
    }
    seen_[act.fault].others_blamed += told.others_blamed;
    EXPECT_LT(told.others_blamed, static_cast<int>(members_.size())) << "nobody missed rank " << act.victim;
  }

  const History& history_;
  Seen& seen_;
  std::vector<int> members_;
  Shared<Stage> stage_;
  std::array<int, 2> abort_pipe_{};
};

void print(Seen& seen) {
  for (auto& [fault, of_fault] : seen) {
    auto& times = of_fault.times;
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
      return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
    };
    std::printf(
        "%s: %zu errors, %d of them also or only name a survivor; ms %s: 50 %% %.2f, 90 %% %.2f, 99 %% %.2f, all "
        "%.2f\n",
        kNames[static_cast<std::size_t>(fault)], times.size(), of_fault.others_blamed,
        fault == Fault::stopped ? "after the deadline" : "after the fault", at(0.5), at(0.9), at(0.99), at(1));
  }
}

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(Chaos, RanksThatEndStopOrAbortAnywhereAreMissedAndLeaveNothingBehind) {
  const auto end = Clock::now() + std::chrono::seconds(30);
  const std::uint64_t wanted = number_in("DDP_CHAOS_FAULTS", 0);
  std::uint64_t faults = 0;
  Seen seen;
  for (std::uint64_t seed = number_in("DDP_CHAOS_SEED", 1); wanted > 0 ? faults < wanted : Clock::now() < end; ++seed) {
    SCOPED_TRACE("replay: DDP_CHAOS_FAULTS=1 DDP_CHAOS_SEED=" + std::to_string(seed) + " collective_chaos_test");
    const History history = draw_history(seed);
    Director(history, seen).run();
    faults += history.acts.size();
    if (HasFailure()) break;
  }
  std::printf("%llu faults\n", static_cast<unsigned long long>(faults));
  print(seen);
}

}  // namespace
}  // namespace ddp
