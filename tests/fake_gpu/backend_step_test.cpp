// Training steps on the backend nccl with faults of the stand-in; the others are in tests/nccl.
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/fake_gpu/backend_rank.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

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

// However many entries there are.
TEST(Elastic, CommitsAndRestoresWithOneWaitForTheDevice) {
  run_ranks(2, [](int rank) {
    auto group = join();
    std::deque<Array<float>> weights;  // they stay where they are
    for (int i = 0; i < 5; ++i) weights.emplace_back(group.device(), std::vector<float>(1'000'000, 1));
    std::vector<float> on_host(10, static_cast<float>(rank));
    ElasticState state;
    for (const auto& weight : weights) state.add(weight.range());
    state.add(on_host);
    state.sync(group);
    const auto waits_of = [](const auto& call) {
      const auto before = fake_gpu_calls("cudaEventRecord");
      call();
      return fake_gpu_calls("cudaEventRecord") - before;
    };
    const auto change = [&](float value) {
      for (const auto& weight : weights) weight.write(std::vector<float>(1'000'000, value));
      on_host.assign(10, value);
    };
    for (const float step : {2.0F, 3.0F}) {  // both copies in turns
      change(step);
      EXPECT_EQ(waits_of([&] { state.commit(); }), 1U);
      change(-1);
      EXPECT_EQ(waits_of([&] { state.restore(); }), 1U);
      for (const auto& weight : weights) EXPECT_EQ(weight.values(), std::vector<float>(1'000'000, step));
      EXPECT_EQ(on_host, std::vector<float>(10, step));
    }
    EXPECT_EQ(fake_gpu_live("cudaMallocHost") >= 2, true) << "the copies are pinned";
    group.barrier();
  });
}

// Copies of plain memory, which CUDA makes in the call.
TEST(DeviceMemory, WaitsOnceForAllCopies) {
  run_ranks(1, [](int) {
    auto group = join();
    const auto memory = group.impl()->backend().device_memory();
    using Copy = process_group::DeviceMemory::Copy;
    for (const std::size_t count : {100, 1'000'000}) {
      const Array<float> first(group.device(), count), second(group.device(), count);
      const std::vector<float> ones(count, 1), twos(count, 2);
      const std::vector<Copy> in{{first.range().data, ones.data(), count * sizeof(float)},
                                 {second.range().data, twos.data(), count * sizeof(float)}};
      auto before = fake_gpu_calls("cudaEventRecord");
      memory->copy_from_host(in, nullptr);
      EXPECT_EQ(fake_gpu_calls("cudaEventRecord") - before, count == 100 ? 1U : 2U);
      std::vector<float> first_back(count), second_back(count);
      const std::vector<Copy> out{{first_back.data(), first.range().data, count * sizeof(float)},
                                  {second_back.data(), second.range().data, count * sizeof(float)}};
      before = fake_gpu_calls("cudaEventRecord");
      memory->copy_to_host(out, nullptr);
      EXPECT_EQ(fake_gpu_calls("cudaEventRecord") - before, 1U);
      EXPECT_EQ(first_back, ones);
      EXPECT_EQ(second_back, twos);
    }
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
