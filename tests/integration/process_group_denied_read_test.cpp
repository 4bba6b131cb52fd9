// The kernel refuses to let one rank read another rank's memory, at every point of a call in turn.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/integration/rank_processes.hpp"

namespace {

// How many more reads of more than a word the kernel permits in this process.
std::atomic<std::int64_t> permitted{std::numeric_limits<std::int64_t>::max()};
std::atomic<std::int64_t> asked{0};

}  // namespace

extern "C" [[gnu::visibility("default")]] ssize_t process_vm_readv(pid_t pid, const iovec* here,
                                                                   unsigned long here_count, const iovec* there,
                                                                   unsigned long there_count, unsigned long flags) {
  if (here[0].iov_len > sizeof(std::uint64_t)) {
    ++asked;
    if (permitted.fetch_sub(1) <= 0) {
      errno = EPERM;
      return -1;
    }
  }
  return ::syscall(SYS_process_vm_readv, pid, here, here_count, there, there_count, flags);
}

namespace ddp {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 300'007;  // several blocks of each rank's slice, and a part of one
constexpr int kCallsUntilRead = 6;       // each way through plain memory is tried twice; this one is the last

std::int64_t value_of(int rank, std::size_t i) { return (rank + 1) * 1'000'003 + static_cast<std::int64_t>(i); }

std::int64_t sum_at(std::size_t i) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += value_of(rank, i);
  return sum;
}

std::vector<std::int64_t> values_of(int rank, std::size_t count) {
  std::vector<std::int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

// A collective on plain memory, and whether its result is right.
using Call = bool (*)(ProcessGroup& group);

bool all_reduce_in_place(ProcessGroup& group) {
  auto values = values_of(group.rank(), kCount);
  group.all_reduce(values);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (values[i] != sum_at(i)) return false;
  }
  return true;
}

bool reduce_scatter(ProcessGroup& group) {
  const std::size_t count = kCount / kRanks;
  const std::size_t first = count * static_cast<std::size_t>(group.rank());
  const auto input = values_of(group.rank(), count * kRanks);
  std::vector<std::int64_t> output(count);
  group.reduce_scatter(input, output);
  for (std::size_t i = 0; i < count; ++i) {
    if (output[i] != sum_at(first + i)) return false;
  }
  return true;
}

bool reduce_in_place(ProcessGroup& group) {
  auto values = values_of(group.rank(), kCount);
  const bool is_root = group.rank() == 1;
  group.reduce(values, is_root ? MemoryRange(values) : MemoryRange(values.data(), 0), 1);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (values[i] != (is_root ? sum_at(i) : value_of(group.rank(), i))) return false;
  }
  return true;
}

bool all_to_all(ProcessGroup& group) {
  const std::size_t count = kCount / kRanks;
  const auto own = static_cast<std::size_t>(group.rank());
  const auto input = values_of(group.rank(), count * kRanks);
  std::vector<std::int64_t> output(input.size());
  group.all_to_all(input, output);
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (output[i] != value_of(static_cast<int>(i / count), own * count + i % count)) return false;
  }
  return true;
}

class DeniedRead : public ::testing::TestWithParam<Call> {};

// Read number `denied_from` of rank 1 in the call is the first that is refused, for each read of a call and for none.
TEST_P(DeniedRead, AnywhereInACallChangesNoResult) {
  for (std::int64_t denied_from = 0;; ++denied_from) {
    testing::Shared<std::atomic<bool>> is_over;
    testing::RankProcesses ranks(kRanks, [&](int rank) {
      auto group = init_process_group({.timeout = testing::kNotForEver});
      for (int call = 1; call < kCallsUntilRead; ++call) ASSERT_TRUE(GetParam()(group)) << "before the refusal";
      asked = 0;
      if (rank == 1) permitted = denied_from;
      ASSERT_TRUE(GetParam()(group)) << "refused from read " << denied_from << " on";
      const std::int64_t needed = asked;
      if (rank == 1) *is_over = needed <= denied_from;
      for (int call = 0; call < 3; ++call) ASSERT_TRUE(GetParam()(group)) << "after the refusal";
      if (rank != 1) return;
      EXPECT_GT(needed, 0) << "no memory was read";
      if (needed > denied_from) {
        EXPECT_EQ(asked, needed) << "memory is read again after a refusal";
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) ranks.expect_success(rank);
    if (HasFailure() || *is_over) return;
    ASSERT_LT(denied_from, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, DeniedRead,
                         ::testing::Values(&all_reduce_in_place, &reduce_scatter, &reduce_in_place, &all_to_all));

}  // namespace
}  // namespace ddp
