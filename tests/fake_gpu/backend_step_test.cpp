// Training steps on the backend nccl with faults of the stand-in; the others are in tests/nccl.
#include <gtest/gtest.h>

#include "tests/fake_gpu/backend_rank.hpp"

namespace ddp::fake_gpu {
namespace {

using testing::run_ranks;

TEST(Step, ThatMeetsAnErrorOfNcclThrowsOnAll) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:6:async:6");
    auto group = join();
    const Array<float> weight(group.device(), 100);
    DistributedDataParallel ddp(group, {{"weight", {100}, weight.range()}});
    EXPECT_THROW(
        {
          for (;;) {
            auto step = ddp.begin_step();
            step.ready(0);
            step.finish();
          }
        },
        RankFailure);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
