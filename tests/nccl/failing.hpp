// What tests do with groups of the backend nccl that fail.
//
// Threads: a rank's main thread.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {

inline void expect_group_is_useless(ProcessGroup& group, const std::string& first_reason) {
  using ::testing::HasSubstr;
  const auto again = testing::thrown_by<AbortedError>([&] { group.barrier(); });
  ASSERT_TRUE(again);
  EXPECT_THAT(again->what(),
              ::testing::AllOf(HasSubstr("the process group is of no further use"), HasSubstr(first_reason)));
  testing::thrown_by<AbortedError>([&] { group.allocate(1); });
  wait_until_gone("ncclComm");  // after an abort by this rank calls end before that
}

// Calls all_reduce without end, and looks at each result, as a program would.
[[noreturn]] inline void reduce_without_end(ProcessGroup& group, MemoryRange values) {
  for (;;) {
    group.all_reduce(values);
    group.barrier();
  }
}

}  // namespace ddp::nccl_test
