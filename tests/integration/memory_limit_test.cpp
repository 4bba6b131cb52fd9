// Below a limit of memory: models whose gradients fit are not refused.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "tests/integration/limited_group.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {
namespace {

using test::LimitedGroup;
using testing::run_ranks;
using testing::thrown_by;

constexpr std::size_t kMiB = 1u << 20;

TEST(MemoryLimit, MemoryThatIsTakenOnlyWhenItIsWrittenToDoesNotCount) {
  const LimitedGroup limited(256 * kMiB);
  if (!limited.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  run_ranks(2, [&](int rank) {
    limited.enter();
    ProcessGroup group = init_process_group();
    const RegisteredMemory memory = process_group::allocate_sparse(group, 200 * kMiB, 199 * kMiB, {});
    auto* const values = static_cast<std::int64_t*>(memory.data());
    values[1000] = rank;
    group.all_reduce({values + 1000, 1});
    EXPECT_EQ(values[1000], 1);
    EXPECT_TRUE(thrown_by<Error>([&] { process_group::allocate_sparse(group, 200 * kMiB, 60 * kMiB, {}); }));
  });
}

}  // namespace
}  // namespace ddp
