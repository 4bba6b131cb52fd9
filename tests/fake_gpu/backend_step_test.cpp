// Training steps on the backend nccl with faults of the stand-in; the others are in tests/nccl.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <future>
#include <vector>

#include "tests/fake_gpu/backend_rank.hpp"
#include "tests/nccl/gate.hpp"
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

unsigned long calls_in(const char* function, const std::function<void()>& code) {
  const auto before = fake_gpu_calls(function);
  code();
  return fake_gpu_calls(function) - before;
}

// One after the other, so that each finds the events of the one before.
TEST(Calls, TakeTheEventsOfThoseThatAreDone) {
  run_ranks(1, [](int) {
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto reduce_and_wait = [&] {
      std::promise<void> done;
      group.all_reduce_async(values.range()).on_completed([&](std::exception_ptr) { done.set_value(); });
      done.get_future().wait();
    };
    for (int i = 0; i < 4; ++i) reduce_and_wait();
    const auto made = calls_in("cudaEventCreateWithFlags", [&] {
      for (int i = 0; i < 50; ++i) reduce_and_wait();
    });
    EXPECT_LT(made, 10U);  // what the watching thread still holds is not there to be taken
  });
}

// The stream of the group waits for the caller's at each call, and the caller's once for the last of them.
TEST(Step, WaitsForItsBucketsTogether) {
  run_ranks(1, [](int) {
    auto group = join();
    const Array<float> values(group.device(), 500);
    std::vector<Parameter> parameters;
    for (std::size_t p = 0; p < 5; ++p)
      parameters.push_back({"p" + std::to_string(p), {100}, values.part(100 * p, 100)});
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 400;
    DistributedDataParallel model(group, parameters, options);
    ASSERT_EQ(model.bucket_count(), 5U);
    const auto step = [&] {
      auto one = model.begin_step();
      for (std::size_t p = parameters.size(); p-- > 0;) one.ready(p);
      one.finish();
    };
    step();
    const auto calls = calls_in("ncclAllReduce", step);
    EXPECT_GE(calls, 5U);
    nccl_test::Gate gate;
    gate.close(nullptr);  // what is done already needs no wait
    EXPECT_EQ(calls_in("cudaStreamWaitEvent", step), calls + 2) << "one for the flags, one for the buckets";
    gate.open();
    group.barrier();
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
