// A rank that waits leaves the cores to others.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>
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

namespace ddp {
namespace {

using testing::Shared;
using testing::wait_until;

constexpr std::chrono::milliseconds kNap{100};  // a rank that polls more rarely uses next to nothing of a core
// Of a core, for a call. A rank tries for about 1 ms before it sleeps; in a virtual machine that counts as time of a
// core what the host takes away meanwhile.
constexpr double kSecondsMax = 0.5;

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

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
      const double used_before = cpu_seconds();
      ++*begun;
      call();
      EXPECT_LT(cpu_seconds() - used_before, kSecondsMax);
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
