#include "launcher/guardian/process_tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

constexpr int kLimitMs = 60'000;

std::vector<pid_t> pids_of(const std::vector<Process>& processes) {
  std::vector<pid_t> out;
  for (const auto& process : processes) out.push_back(process.pid);
  return out;
}

pid_t start(const std::function<void()>& run) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  run();
  ::_exit(0);
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

// A pipe whose ends processes inherit.
class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) ::abort();
  }
  Pipe(const Pipe&) = delete;
  ~Pipe() {
    for (const int end : ends_) ::close(end);
  }
  void say(pid_t pid) const {
    if (::write(ends_[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
  }
  [[nodiscard]] pid_t hear() const {
    pid_t pid = 0;
    return ::read(ends_[0], &pid, sizeof pid) == sizeof pid ? pid : 0;
  }

 private:
  int ends_[2];
};

// This process as a subreaper, with nothing left of what it started.
class ProcessTree : public ::testing::Test {
 protected:
  ProcessTree() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~ProcessTree() override {
    EXPECT_TRUE(kill_all_children({}, kLimitMs));
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
};

TEST(ProcessTreeList, DescendantsInAnyOrderOfTheList) {
  // 1 -> 10 -> {20 -> 30, 21}; 1 -> 11 -> 22
  const std::vector<Process> all{{30, 20}, {21, 10}, {20, 10}, {22, 11}, {10, 1}, {11, 1}, {1, 0}};
  EXPECT_THAT(pids_of(descendants_of(10, all)), UnorderedElementsAre(20, 21, 30));
  EXPECT_THAT(pids_of(descendants_of(11, all)), ElementsAre(22));
  EXPECT_THAT(pids_of(descendants_of(30, all)), IsEmpty());
  EXPECT_EQ(descendants_of(1, all).size(), 6u);
}

struct Planned {
  std::size_t parent;  // an index before its own
  bool by_thread;      // forked by a thread that is not the main one, and stays
};

// Becomes process `self` of the plan, which says its pid when its children are started. A thread forks while the main
// one waits for it: a lock of a sanitizer's that the main thread held then would stay locked in the child.
[[noreturn]] void become(const std::vector<Planned>& plan, std::size_t self, const Pipe& told) {
  std::binary_semaphore may_fork(0), has_forked(0);
  for (std::size_t i = self + 1; i < plan.size(); ++i) {
    if (plan[i].parent != self) continue;
    if (plan[i].by_thread) {
      std::thread([&plan, &told, &may_fork, &has_forked, i] {
        may_fork.acquire();
        start([&] { become(plan, i, told); });
        has_forked.release();
        sleep_for_ever();
      }).detach();
      may_fork.release();
      has_forked.acquire();
    } else {
      start([&] { become(plan, i, told); });
    }
  }
  told.say(::getpid());
  sleep_for_ever();
}

TEST_F(ProcessTree, IsWhatAllOfProcShows) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<Planned> plan(1 + random() % 40);
    for (std::size_t i = 1; i < plan.size(); ++i) plan[i] = {random() % i, random() % 2 == 0};
    const Pipe told;
    const pid_t root = start([&] { become(plan, 0, told); });
    std::vector<pid_t> expected;
    for (std::size_t i = 0; i < plan.size(); ++i)
      if (const pid_t pid = told.hear(); pid != root) expected.push_back(pid);
    EXPECT_THAT(pids_of(descendants_of(root)), UnorderedElementsAreArray(expected));
    EXPECT_THAT(pids_of(descendants_of(root, all_processes())), UnorderedElementsAreArray(expected));
    EXPECT_THAT(children_of_this_process(), ElementsAre(root));
    EXPECT_TRUE(kill_all_children({}, kLimitMs));
  }
}

TEST_F(ProcessTree, HasTheChildrenOfAThread) {
  const std::vector<Planned> plan{{0, false}, {0, true}, {1, true}};
  const Pipe told;
  const pid_t root = start([&] { become(plan, 0, told); });
  for (std::size_t i = 0; i < plan.size(); ++i) EXPECT_GT(told.hear(), 0);
  EXPECT_EQ(descendants_of(root).size(), 2u);
}

TEST_F(ProcessTree, HasAProcessWhoseMainThreadHasEnded) {
  const Pipe told;
  const pid_t root = start([&] {
    std::thread([&] {
      const pid_t child = start(sleep_for_ever);
      told.say(child);
      sleep_for_ever();
    }).detach();
    ::syscall(SYS_exit, 0);
  });
  const pid_t child = told.hear();
  std::string state;
  for (std::string line; state != "Z";) {  // which comes without a sign
    std::ifstream status("/proc/" + std::to_string(root) + "/stat");
    ASSERT_TRUE(std::getline(status, line));
    state = line.substr(line.rfind(')') + 2, 1);
  }
  EXPECT_THAT(pids_of(descendants_of(::getpid())), UnorderedElementsAre(root, child));
  EXPECT_TRUE(kill_all_children({}, kLimitMs));
}

TEST_F(ProcessTree, HasNoneThatHasEnded) {
  const pid_t child = start([] {});
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_THAT(descendants_of(::getpid()), IsEmpty());
  EXPECT_THAT(children_of_this_process(), IsEmpty());
}

void spin_for(std::chrono::microseconds duration) {
  const auto until = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < until) {
  }
}

// It has another parent then, whose children have been read.
TEST_F(ProcessTree, MissesNobodyWhoseParentEndsMeanwhile) {
  const Pipe told, go;
  start([&] {
    for (int i = 0; i < 20; ++i)
      start(sleep_for_ever);  // which are looked at between this process and the one that ends
    for (int round = 0;; ++round) {
      const pid_t parent = start([&] {
        told.say(start(sleep_for_ever));
        static_cast<void>(go.hear());
        spin_for(std::chrono::microseconds(50) * round);
      });
      ::waitpid(parent, nullptr, 0);
    }
  });
  for (int round = 0; round < 40; ++round) {
    const pid_t staying = told.hear();
    go.say(1);
    for (bool is_ours = false; !is_ours;) {
      const auto found = descendants_of(::getpid());
      ASSERT_THAT(pids_of(found), Contains(staying)) << "round " << round;
      is_ours = std::any_of(found.begin(), found.end(),
                            [&](const Process& p) { return p.pid == staying && p.parent == ::getpid(); });
    }
    ::kill(staying, SIGKILL);
    ::waitpid(staying, nullptr, 0);
  }
}

// It is another thread's child then, whose list may have been read.
TEST_F(ProcessTree, MissesNobodyWhoseThreadEndsMeanwhile) {
  for (int round = 0; round < 40; ++round) {
    const Pipe told, go;
    const pid_t parent = start([&] {
      for (int i = 0; i < 50; ++i) std::thread(sleep_for_ever).detach();
      std::thread([&] {
        told.say(start(sleep_for_ever));
        static_cast<void>(go.hear());
        spin_for(std::chrono::microseconds(25) * round);
      }).join();
      sleep_for_ever();
    });
    const pid_t staying = told.hear();
    go.say(1);
    const auto list = "/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children";
    if (::access(list.c_str(), R_OK) != 0) GTEST_SKIP() << "this kernel does not list a process's children";
    for (pid_t child_of_main_thread = 0; child_of_main_thread != staying;) {
      ASSERT_THAT(pids_of(descendants_of(parent)), ElementsAre(staying)) << "round " << round;
      std::ifstream(list) >> child_of_main_thread;
    }
    ASSERT_TRUE(kill_all_children({}, kLimitMs));
  }
}

TEST_F(ProcessTree, KillsWhatForksMeanwhile) {
  const Pipe told;
  start([&] {  // children that fork children, all of which stay
    for (int i = 0; i < 300; ++i) {
      start([] {
        start(sleep_for_ever);
        sleep_for_ever();
      });
      if (i == 10) told.say(::getpid());
    }
    sleep_for_ever();
  });
  start([&] {  // and one that lives on in its children, each of them ending as soon as it has the next
    for (int generation = 0; generation < 10'000; ++generation) {
      if (generation == 10) told.say(::getpid());
      if (::fork() > 0) ::_exit(0);
      ::usleep(500);
    }
  });
  EXPECT_GT(told.hear(), 0);
  EXPECT_GT(told.hear(), 0);
  EXPECT_TRUE(kill_all_children({}, kLimitMs));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(ProcessTree, SparesAChildAndWhatDescendsFromIt) {
  const Pipe told;
  const auto parent_of_one = [&] {
    told.say(start(sleep_for_ever));
    sleep_for_ever();
  };
  const pid_t spared = start(parent_of_one);
  const pid_t beneath = told.hear();
  const pid_t other = start(parent_of_one);
  static_cast<void>(told.hear());
  EXPECT_TRUE(kill_all_children({spared}, kLimitMs));
  EXPECT_THAT(pids_of(descendants_of(::getpid())), UnorderedElementsAre(spared, beneath));
  EXPECT_EQ(::kill(other, 0), -1);
}

TEST_F(ProcessTree, KnowsTheEnvironmentDuringAnExec) {
  const pid_t child = start([] {
    char shell[] = "sh", option[] = "-c", script[] = "exec /bin/sh -c \"$SCRIPT\"";
    char variable[] = "SCRIPT=exec /bin/sh -c \"$SCRIPT\"", mark[] = "MARK=7:8";
    char* const arguments[] = {shell, option, script, nullptr};
    char* const environment[] = {variable, mark, nullptr};
    ::execve("/bin/sh", arguments, environment);  // and so on, without end
  });
  while (first_value_of(child, "MARK").empty()) ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
  for (int look = 0; look < 300; ++look) ASSERT_EQ(first_value_of(child, "MARK"), "7:8") << "look " << look;
}

// Of the reads that this thread made so far.
std::uint64_t reads() {
  std::ifstream file("/proc/thread-self/io");
  for (std::string word; file >> word;)
    if (std::uint64_t count = 0; word == "syscr:" && file >> count) return count;
  return 0;
}

TEST_F(ProcessTree, ReadsAnEmptyEnvironmentOnce) {
  if (reads() == 0) GTEST_SKIP() << "this kernel does not count the reads of a thread";
  int output[2];
  ASSERT_EQ(::pipe(output), 0);
  const pid_t child = start([&] {
    char shell[] = "sh", option[] = "-c", script[] = "echo; kill -STOP $$";
    char* const arguments[] = {shell, option, script, nullptr};
    char* const environment[] = {nullptr};
    ::dup2(output[1], 1);
    ::execve("/bin/sh", arguments, environment);
  });
  ::close(output[1]);
  char newline = 0;
  ASSERT_EQ(::read(output[0], &newline, 1), 1) << "the shell does not run";
  ::close(output[0]);
  const auto before = reads();
  EXPECT_EQ(first_value_of(child, "MARK"), "");
  EXPECT_LT(reads() - before, 20u);
}

TEST(ProcessTreeEnds, BeginWithTheFirstThreadThatSaysSo) {
  const auto stat = [](const std::string& state, unsigned flags, unsigned long pending) {
    return "17 (a ) name) " + state + " 1 17 17 0 -1 " + std::to_string(flags) +
           " 90 0 0 0 1 2 0 0 20 0 4 0 1 2 3 4 5 6 7 8 9 " + std::to_string(pending) + " 0 0 0 0 0 0";
  };
  EXPECT_FALSE(is_thread_ending(stat("R", 0x400040, 0)));
  EXPECT_FALSE(is_thread_ending(stat("S", 0x40, 1UL << (SIGTERM - 1)))) << "it may have a handler";
  EXPECT_TRUE(is_thread_ending(stat("D", 0x44, 0))) << "exits";
  EXPECT_TRUE(is_thread_ending(stat("R", 0x440, 0))) << "dies of a signal";
  EXPECT_TRUE(is_thread_ending(stat("R", 0x240, 0))) << "dumps core";
  EXPECT_TRUE(is_thread_ending(stat("D", 0x40, 1UL << (SIGKILL - 1))));
  EXPECT_TRUE(is_thread_ending(stat("Z", 0x40, 0)));
  EXPECT_FALSE(is_thread_ending(""));
  EXPECT_FALSE(is_thread_ending("17 (name"));
}

TEST_F(ProcessTree, ProcessEndsOnceAllItsThreadsDo) {
  Pipe ready;
  const pid_t running = start([&] { sleep_for_ever(); });
  const pid_t without_main_thread = start([&] {
    std::thread([&] {
      ready.say(1);
      sleep_for_ever();
    }).detach();
    ::syscall(SYS_exit, 0);
  });
  const pid_t zombie = start([] {});
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(is_ending(running));
  EXPECT_TRUE(is_ending(zombie));
  EXPECT_EQ(ready.hear(), 1);
  EXPECT_FALSE(is_ending(without_main_thread));
  ::kill(running, SIGKILL);
  EXPECT_TRUE(is_ending(running));
  for (const pid_t pid : {running, without_main_thread, zombie}) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  EXPECT_FALSE(is_ending(running));
}

TEST_F(ProcessTree, IsFoundWithoutALookAtOthers) {
  if (reads() == 0) GTEST_SKIP() << "this kernel does not count the reads of a thread";
  if (::access("/proc/thread-self/children", R_OK) != 0)
    GTEST_SKIP() << "this kernel does not list a process's children";
  const pid_t root = start(sleep_for_ever);
  for (int i = 0; i < 60; ++i) start(sleep_for_ever);
  const auto before = reads();
  EXPECT_THAT(descendants_of(root), IsEmpty());
  EXPECT_LT(reads() - before, 20u);
}

// A child that has ended, and is not reaped.
class Zombie {
 public:
  Zombie() : pid_(::fork()) {
    if (pid_ == 0) ::_exit(0);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  ~Zombie() { ::waitpid(pid_, nullptr, 0); }
  Zombie(const Zombie&) = delete;
  Zombie& operator=(const Zombie&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Each call to the clock, but for the first one, follows one look.
std::function<LookTime()> clock_of_looks(int& calls, LookTime per_look) {
  return [&calls, per_look] {
    const int looks = calls++;
    return LookTime{per_look.cpu * looks, per_look.wall * looks};
  };
}

TEST(WhoIsEnding, FindsThoseThatHaveBegunToEnd) {
  const Zombie first, second;
  int calls = 0;
  EXPECT_EQ(who_is_ending({first.pid(), ::getpid(), second.pid()}, clock_of_looks(calls, {10us, 10us})),
            (std::set<pid_t>{first.pid(), second.pid()}));
}

TEST(WhoIsEnding, LooksAtNoMoreThanOneMillisecondOfCpuTimeAllows) {
  const Zombie last;
  std::vector<pid_t> many(100'000, ::getpid());
  many.push_back(last.pid());
  int calls = 0;
  EXPECT_TRUE(who_is_ending(many, clock_of_looks(calls, {10us, 10us})).empty());
  EXPECT_EQ(calls, 101);
  const auto begin = look_time_now();
  EXPECT_TRUE(who_is_ending(many, look_time_now).empty());
  EXPECT_LT(look_time_now().cpu - begin.cpu, 100ms) << "all of them would take a second";
}

TEST(WhoIsEnding, LooksOnThoughOthersHadTheCpuFor10ms) {
  const Zombie last;
  std::vector<pid_t> pids(10, ::getpid());
  pids.push_back(last.pid());
  int calls = 0;
  EXPECT_EQ(who_is_ending(pids, clock_of_looks(calls, {10us, 1ms})), std::set<pid_t>{last.pid()});
  calls = 0;
  EXPECT_TRUE(who_is_ending(pids, clock_of_looks(calls, {10us, 10ms})).empty());
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace ddp::launcher
