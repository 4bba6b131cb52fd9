// A rank that waits leaves the cores to others.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"

namespace ddp {
namespace {

constexpr double kShareMax = 0.02;  // of one core
constexpr std::chrono::milliseconds kLate{1500};

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// All others wait for the last rank, in each of these calls.
void wait_for_the_last(ProcessGroup& group, const std::string& what, const std::function<void()>& call) {
  group.barrier();
  const double began = seconds_of(CLOCK_MONOTONIC);
  const double used_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const bool is_late = group.rank() == group.size() - 1;
  if (is_late) std::this_thread::sleep_for(kLate);
  call();
  const double waited = seconds_of(CLOCK_MONOTONIC) - began;
  const double used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used_before;
  if (is_late) return;
  EXPECT_LT(used / waited, kShareMax) << what << ": " << used * 1e3 << " ms of a core in " << waited << " s, rank "
                                      << group.rank();
}

void check_waits(int size) {
  testing::run_ranks(size, [&](int) {
    auto group = init_process_group();
    std::vector<float> few(1);
    std::vector<float> many(300'000);
    const int last = group.size() - 1;
    wait_for_the_last(group, "barrier", [&] { group.barrier(); });
    wait_for_the_last(group, "all_reduce of few", [&] { group.all_reduce(few); });
    wait_for_the_last(group, "all_reduce of many, async", [&] { group.all_reduce_async(many).wait(); });
    wait_for_the_last(group, "receive", [&] {
      if (group.rank() != last) return group.receive(few, last);
      for (int rank = 0; rank < last; ++rank) group.send(few, rank);
    });
  });
}

TEST(Waiting, TakesNextToNothingOfACore) { check_waits(2); }

TEST(Waiting, TakesNextToNothingOfACoreWhereRanksOutnumberCores) {
  check_waits(2 * static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) + 1);
}

}  // namespace
}  // namespace ddp
