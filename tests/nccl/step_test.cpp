// Streams and training steps on the backend nccl, over the stand-in and on a GPU: what waits for what, and that the
// host waits for nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>

#include "tests/nccl/gate.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;
using Values = std::vector<float>;

// What a copy that is to run beside the host needs: CUDA makes the host wait for one of other memory.
struct Pinned {
  Pinned(std::size_t count_, float value) : count(count_) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocHost(&memory, count * sizeof(float)), cudaSuccess);
    data = static_cast<float*>(memory);
    std::fill_n(data, count, value);
  }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  Values values() const { return {data, data + count}; }

  std::size_t count;
  float* data = nullptr;
};

TEST(Streams, TheCollectiveWaitsForTheCallersAndTheCallersForIt) {
  Shared<std::atomic<int>> called;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    cudaStream_t stream = make_stream();
    const Array<float> values(group.device(), 10);
    const Pinned ones(10, static_cast<float>(rank + 1));
    const Pinned result(10, 0);
    const unsigned long synchronised = host_synchronisations();
    Gate gate;
    gate.close(stream);
    cudaMemcpyAsync(values.range().data, ones.data, values.range().bytes(), cudaMemcpyHostToDevice, stream);
    Work work = group.all_reduce_async(values.range(), ReduceOp::sum, {.stream = stream});
    work.wait();
    cudaMemcpyAsync(result.data, values.range().data, values.range().bytes(), cudaMemcpyDeviceToHost, stream);
    ++*called;
    wait_until([&] { return called->load() == 2; });  // both came here though nothing has been written yet
    EXPECT_FALSE(work.is_completed());
    EXPECT_EQ(host_synchronisations(), synchronised);
    gate.open();
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_THAT(result.values(), Each(3.0F));
    EXPECT_TRUE(work.is_completed());
    work.wait();
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

TEST(Streams, EachStreamOfCoalescedCallsWaitsForAllOfThem) {
  run_ranks(2, [](int) {
    auto group = join();
    connect(group);
    cudaStream_t first = make_stream();
    cudaStream_t second = make_stream();
    const Array<float> one(group.device(), 10);
    const Array<float> other(group.device(), 10);
    Gate gate;
    gate.close(first);
    Work work = group.coalesce([&] {
      static_cast<void>(group.all_reduce_async(one.range(), ReduceOp::sum, {.stream = first}));
      static_cast<void>(group.all_reduce_async(other.range(), ReduceOp::sum, {.stream = second}));
    });
    EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);  // only wait() makes this stream wait for the calls
    work.wait();
    EXPECT_EQ(cudaStreamQuery(first), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
    gate.open();
    EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
    EXPECT_TRUE(work.is_completed());
    group.barrier();
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
  });
}

TEST(Streams, ABarrierBlocksTheHost) {
  Shared<std::atomic<int>> came;
  run_ranks(2, [&](int rank) {
    auto group = join();
    group.barrier();
    if (rank == 1) ++*came;
    group.barrier();
    EXPECT_EQ(came->load(), 1);
  });
}

TEST(Work, MayBeWaitedForOnTheHostUpToALimit) {
  run_ranks(2, [](int rank) {
    auto group = join();
    connect(group);
    cudaStream_t stream = make_stream();
    const Array<float> values(group.device(), Values(10, static_cast<float>(rank + 1)));
    Gate gate;
    gate.close(stream);
    const auto begin = std::chrono::steady_clock::now();
    Work work = group.all_reduce_async(values.range(), ReduceOp::sum, {.stream = stream});
    EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(20)));
    EXPECT_FALSE(work.is_completed());
    EXPECT_FALSE(work.duration());
    gate.open();
    EXPECT_TRUE(work.wait_for(std::chrono::minutes(1)));
    EXPECT_TRUE(work.is_completed());
    const auto took = work.duration().value_or(std::chrono::hours(1));
    EXPECT_GT(took, std::chrono::nanoseconds(0));
    EXPECT_LT(took, std::chrono::steady_clock::now() - begin - std::chrono::milliseconds(19)) << "with the closed gate";
    EXPECT_THAT(values.values(), Each(3.0F));
    EXPECT_TRUE(work.wait_for(std::chrono::milliseconds(0)));
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

TEST(Work, CallsBackWhenTheDeviceHasDoneIt) {
  run_ranks(2, [](int) {
    auto group = join();
    connect(group);
    cudaStream_t stream = make_stream();
    const Array<float> values(group.device(), Values(10, 1));
    std::atomic<int> good{0};
    const auto count = [&](const std::exception_ptr& error) { good += error ? 100 : 1; };
    Gate gate;
    gate.close(stream);
    Work work = group.all_reduce_async(values.range(), ReduceOp::sum, {.stream = stream});
    work.on_completed(count);
    EXPECT_EQ(good, 0);
    gate.open();
    EXPECT_TRUE(work.wait_for(std::chrono::minutes(1)));
    wait_until([&] { return good == 1; });
    work.on_completed(count);
    EXPECT_EQ(good, 2) << "at once, on this thread";
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

TEST(Work, ACallbackMayHoldTheLastHandleOfItsGroup) {
  run_ranks(2, [](int) {
    auto group = join();
    connect(group);
    auto other = join();
    connect(other);
    cudaStream_t stream = make_stream();
    const Array<float> values(group.device(), Values(10, 1));
    std::atomic<bool> is_gone{false};
    Gate gate;
    gate.close(stream);
    {
      const std::shared_ptr<void> at_its_end(nullptr, [&](void*) { is_gone = true; });
      group.all_reduce_async(values.range(), ReduceOp::sum, {.stream = stream})
          .on_completed([at_its_end, held = group](const std::exception_ptr&) {});
    }
    group = {};
    gate.open();
    wait_until([&] { return is_gone.load(); });
    // The thread that looks after the device still does, for the other group.
    std::atomic<int> good{0};
    other.all_reduce_async(values.range()).on_completed([&](const std::exception_ptr& error) {
      good += error ? 100 : 1;
    });
    wait_until([&] { return good == 1; });
    other.barrier();
    cudaStreamDestroy(stream);
  });
}

TEST(Work, CallsBackWithTheErrorWhichThenCountsAsWaitedFor) {
  const testing::AllHere all_here;
  Shared<std::atomic<bool>> done;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return done->load(); });
    const Array<float> values(group.device(), 10);
    std::atomic<int> bad{0};
    Work work = group.all_reduce_async(values.range());
    work.on_completed([&](const std::exception_ptr& error) {
      if (thrown_by<AbortedError>([&] { std::rethrow_exception(error); })) ++bad;
    });
    group.abort("enough");
    wait_until([&] { return bad == 1; });
    EXPECT_TRUE(thrown_by<AbortedError>([&] { static_cast<void>(work.wait_for(std::chrono::minutes(1))); }));
    *done = true;
  });
}

// A model of two parameters on the device.
struct Model {
  explicit Model(const ProcessGroup& group)
      : weight(group.device(), Values(100, 1)), bias(group.device(), Values(10, 2)) {}

  std::vector<Parameter> parameters() const {
    return {{"weight", {100}, weight.range()}, {"bias", {10}, bias.range()}};
  }

  Array<float> weight;
  Array<float> bias;
};

// The values stay until the test ends: the stream reads them later.
void write(std::deque<Pinned>& kept, const MemoryRange& gradient, float value, cudaStream_t stream) {
  const Pinned& values = kept.emplace_back(gradient.count, value);
  cudaMemcpyAsync(gradient.data, values.data, gradient.bytes(), cudaMemcpyHostToDevice, stream);
}

Values read(const MemoryRange& range, cudaStream_t stream) {
  Values values(range.count);
  cudaMemcpyAsync(values.data(), range.data, range.bytes(), cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  return values;
}

TEST(Step, MakesTheHostWaitForNothing) {
  run_ranks(2, [](int rank) {
    auto group = join();
    cudaStream_t stream = make_stream();
    const Model model(group);
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = 1;  // a bucket for each
    options.bucket_cap_bytes = 1;
    options.collective.stream = stream;
    DistributedDataParallel ddp(group, model.parameters(), options);
    std::deque<Pinned> kept;
    const unsigned long synchronised = host_synchronisations();
    for (int i = 0; i < 20; ++i) {
      auto step = ddp.begin_step();
      write(kept, ddp.gradient(1), static_cast<float>(rank + i), stream);
      step.ready(1);
      write(kept, ddp.gradient(0), static_cast<float>(10 * rank), stream);
      step.ready(0);
      step.finish();
    }
    EXPECT_EQ(host_synchronisations(), synchronised);
    EXPECT_THAT(read(ddp.gradient(1), stream), Each(19.5F));
    EXPECT_THAT(read(ddp.gradient(0), stream), Each(5.0F));
    group.barrier();
  });
}

// One step may be ahead of the device: the flags of the step before it are looked at in finish(). What the first steps
// allocate is there by then.
TEST(Step, ReturnsWhileTheDeviceIsHeldUp) {
  run_ranks(2, [](int rank) {
    auto group = join();
    cudaStream_t stream = make_stream();
    const Model model(group);
    DistributedDataParallelOptions options;
    options.collective.stream = stream;
    DistributedDataParallel ddp(group, model.parameters(), options);
    const Pinned values(100, static_cast<float>(rank + 1));
    const auto run = [&] {
      auto step = ddp.begin_step();
      for (std::size_t p = 0; p < ddp.parameter_count(); ++p) {
        const MemoryRange gradient = ddp.gradient(p);
        cudaMemcpyAsync(gradient.data, values.data, gradient.bytes(), cudaMemcpyHostToDevice, stream);
        step.ready(p);
      }
      step.finish();
    };
    for (int i = 0; i < 3; ++i) run();
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    group.barrier();
    Gate gate;
    gate.close(stream);
    run();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    gate.open();
    EXPECT_THAT(read(ddp.gradient(0), stream), Each(1.5F));
    group.barrier();
  });
}

// A line through points, fitted by gradient descent; the host computes what a program's kernels would.
struct Line {
  float slope = 0, offset = 0;

  Values gradient(const std::vector<float>& points) const {  // of the mean squared error to y = 3x - 1
    Values sums(2);
    for (const float x : points) {
      const float error = slope * x + offset - (3 * x - 1);
      sums[0] += 2 * error * x / static_cast<float>(points.size());
      sums[1] += 2 * error / static_cast<float>(points.size());
    }
    return sums;
  }
  void descend(const Values& gradient) {
    slope -= 0.125F * gradient[0];
    offset -= 0.125F * gradient[1];
  }
};

TEST(Step, TrainsAsOneProcessWould) {
  for (const int size : {1, 2, 4}) {
    run_ranks(size, [size](int rank) {
      const std::vector<float> all{-1, -0.5F, 0, 0.25F, 0.5F, 0.75F, 1, 2};
      const std::size_t count = all.size() / static_cast<std::size_t>(size);
      const auto begin = all.begin() + rank * static_cast<std::ptrdiff_t>(count);
      const std::vector<float> own(begin, begin + static_cast<std::ptrdiff_t>(count));

      auto group = join();
      cudaStream_t stream = make_stream();
      const Array<float> parameters(group.device(), Values{static_cast<float>(rank), 0});  // rank 0's count
      DistributedDataParallelOptions options;
      options.collective.stream = stream;
      DistributedDataParallel ddp(group, {{"line", {2}, parameters.range()}}, options);
      std::deque<Pinned> kept;
      Line here, alone;
      for (int i = 0; i < 20; ++i) {
        auto step = ddp.begin_step();
        const Values gradient = here.gradient(own);
        for (std::size_t p = 0; p < 2; ++p) {
          MemoryRange one = ddp.gradient(0);
          one.data = static_cast<float*>(one.data) + p;
          one.count = 1;
          write(kept, one, gradient[p], stream);
        }
        step.ready(0);
        step.finish();
        here.descend(read(ddp.gradient(0), stream));
        alone.descend(alone.gradient(all));
        ASSERT_NEAR(here.slope, alone.slope, 1e-5) << "step " << i;
        ASSERT_NEAR(here.offset, alone.offset, 1e-5) << "step " << i;
      }
      EXPECT_NEAR(here.slope, 3, 0.3);
      group.barrier();
    });
  }
}

TEST(Step, BroadcastsParametersFromRank0) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Array<float> weight(group.device(), Values(100, static_cast<float>(rank + 1)));
    const DistributedDataParallel ddp(group, {{"weight", {100}, weight.range()}});
    EXPECT_THAT(weight.values(), Each(1.0F));
    group.barrier();
  });
}

TEST(Step, TellsAnUnusedParameterOneStepLater) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Model model(group);
    DistributedDataParallel ddp(group, model.parameters());
    const auto run = [&](bool uses_bias) {
      auto step = ddp.begin_step();
      step.ready(0);
      if (uses_bias) step.ready(1);
      step.finish();
    };
    run(true);
    run(rank == 0);
    const auto error = thrown_by<GradientError>([&] { run(true); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("parameter bias got no gradient on rank 1"));
    run(true);
    run(true);
    group.barrier();
  });
}

TEST(Step, OfAGroupThatFailsThrowsOnAll) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Model model(group);
    DistributedDataParallel ddp(group, model.parameters());
    const auto run = [&] {
      auto step = ddp.begin_step();
      step.ready(1);
      step.ready(0);
      step.finish();
    };
    if (rank == 0) {
      EXPECT_THROW(for (;;) run(), RankFailure);
      return;
    }
    for (int i = 0; i < 3; ++i) run();
    group.abort("enough");
  });
}

TEST(Elastic, StateOnADeviceGoesToAllAndComesBack) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Array<float> weight(group.device(), Values(100, static_cast<float>(rank + 1)));
    ElasticState state;
    state.add(weight.range());
    state.sync(group);
    EXPECT_THAT(weight.values(), Each(1.0F));
    const Values sevens(100, 7);
    EXPECT_EQ(cudaMemcpy(weight.range().data, sevens.data(), weight.range().bytes(), cudaMemcpyHostToDevice),
              cudaSuccess);
    state.commit();
    const Values nines(100, 9);
    EXPECT_EQ(cudaMemcpy(weight.range().data, nines.data(), weight.range().bytes(), cudaMemcpyHostToDevice),
              cudaSuccess);
    state.restore();
    EXPECT_THAT(weight.values(), Each(7.0F));
    group.barrier();
  });
}

// What a rank commits while others abort may be wrong.
TEST(Elastic, OfTheCommitsOfTheLastRoundTheOldestCounts) {
  run_ranks(3, [](int rank) {
    auto group = join();
    const Array<float> weight(group.device(), Values(100, static_cast<float>(rank + 1)));
    const auto commit = [&](ElasticState& state, float value) {
      weight.write(Values(100, value));
      state.commit();
    };
    ElasticState state;
    state.add(weight.range());
    auto last = group.split(rank == 0 ? -1 : 0);  // rank 0 comes anew later
    if (rank != 0) {
      state.sync(last);
      commit(state, 10);
      if (rank == 1) commit(state, 11);
    }
    state.sync(group);
    EXPECT_THAT(weight.values(), Each(10.0F));
    EXPECT_EQ(state.commits(), 1U);
    group.barrier();
  });
}

TEST(Elastic, NothingOfAFailedCollectiveIsCommitted) {
  Shared<std::atomic<bool>> done;
  run_ranks(2, [&](int rank) {
    auto group = join();
    const Array<float> weight(group.device(), Values(100, 1));
    ElasticState state;
    state.add(weight.range());
    state.sync(group);
    state.commit();
    if (rank == 1) return wait_until([&] { return done->load(); });
    group.all_reduce(weight.range(), ReduceOp::sum, {.timeout = std::chrono::milliseconds(300)});
    thrown_by<TimeoutError>([&] { state.commit(); });
    EXPECT_EQ(state.commits(), 1U);
    state.restore();
    EXPECT_THAT(weight.values(), Each(1.0F));
    *done = true;
  });
}

}  // namespace
}  // namespace ddp::nccl_test
