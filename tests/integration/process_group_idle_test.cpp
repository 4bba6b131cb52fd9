// A rank that waits leaves the cores to others.
//
// This program stands in for the C library's sched_yield and clock_gettime. While a rank waits, its yields are counted
// and each look at the clock moves the clock forward. So a rank gives up trying after a number of yields that does not
// depend on the speed of the machine.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"

namespace {

constexpr std::int64_t kNanosecondsPerLook = 100'000;  // a tenth of the time for which a rank yields before it sleeps

std::atomic<bool> is_waiting{false};
std::atomic<std::int64_t> looks_while_waiting{0};
std::atomic<std::int64_t> yields_while_waiting{0};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int sched_yield() noexcept {
  if (is_waiting) ++yields_while_waiting;
  return static_cast<int>(::syscall(SYS_sched_yield));
}

// What the looks have added stays: the clock never goes back.
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock != CLOCK_MONOTONIC) return result;
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t looks = is_waiting ? ++looks_while_waiting : looks_while_waiting.load();
  const std::int64_t nanoseconds = time->tv_nsec + looks * kNanosecondsPerLook;
  time->tv_sec += nanoseconds / kSecond;
  time->tv_nsec = nanoseconds % kSecond;
  return result;
}

}  // extern "C"

namespace ddp {
namespace {

using testing::Shared;
using testing::wait_until;

constexpr std::chrono::milliseconds kNap{100};  // a rank that polls more rarely uses next to nothing of a core
// Of a call. A rank looks at the clock after every few yields, and 10 looks later it sleeps. A call waits a few times.
constexpr std::int64_t kYieldsMax = 1'000;

// How often each thread of a process has left its core; empty if any of them is on a core, or could use one.
std::map<std::string, std::string> switches_of_sleepers(int pid) {
  std::map<std::string, std::string> switches;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    std::ifstream status(task.path() / "status");
    std::string& of_task = switches[task.path().filename()];
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("State:") && line.find("S (sleeping)") == std::string::npos) return {};
      if (line.find("ctxt_switches:") != std::string::npos) of_task += line;
    }
  }
  return switches;
}

// Whether all threads of these processes sleep, and nothing wakes any of them for a while. The length of the nap
// decides which periods of polling are found; a machine that is slow only makes it longer.
bool sleep_undisturbed(const std::vector<std::int32_t>& pids) {
  std::vector<std::map<std::string, std::string>> before;
  for (const int pid : pids) {
    before.push_back(switches_of_sleepers(pid));
    if (before.back().empty()) return false;
  }
  std::this_thread::sleep_for(kNap);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (switches_of_sleepers(pids[i]) != before[i]) return false;
  }
  return true;
}

// All others wait for the last rank, in each of these calls.
void check_waits(int size) {
  Shared<std::atomic<int>> begun;  // calls of the others
  testing::run_ranks(size, [&](int rank) {
    auto group = init_process_group();
    const int last = size - 1;
    const std::vector<std::int32_t> own_pid{::getpid()};
    std::vector<std::int32_t> pids(static_cast<std::size_t>(size));
    group.all_gather(own_pid, pids);
    pids.pop_back();
    int calls = 0;
    const auto check = [&](const char* what, const std::function<void()>& call) {
      SCOPED_TRACE(what);
      group.barrier();
      ++calls;
      if (rank == last) {
        wait_until([&] { return begun->load() == calls * last; });
        EXPECT_NO_THROW(wait_until([&] { return sleep_undisturbed(pids); })) << "some rank does not sleep";
        return call();
      }
      yields_while_waiting = 0;
      is_waiting = true;
      ++*begun;
      call();
      is_waiting = false;
      EXPECT_GT(yields_while_waiting, 0) << "the yields are not counted";
      EXPECT_LE(yields_while_waiting, kYieldsMax);
    };
    std::vector<float> few(1);
    std::vector<float> many(300'000);
    check("barrier", [&] { group.barrier(); });
    check("all_reduce of few", [&] { group.all_reduce(few); });
    check("all_reduce of many, async", [&] { group.all_reduce_async(many).wait(); });
    check("receive", [&] {
      if (rank != last) return group.receive(few, last);
      for (int peer = 0; peer < last; ++peer) group.send(few, peer);
    });
  });
}

TEST(Waiting, RanksSleepUntilTheLastOneCalls) { check_waits(2); }

TEST(Waiting, RanksThatOutnumberCoresSleepUntilTheLastOneCalls) {
  check_waits(2 * static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) + 1);
}

}  // namespace
}  // namespace ddp
