// Collectives and training steps that are captured into CUDA graphs, over the stand-in and on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/gradient_scaling.hpp>
#include <ddp/sync_batch_norm.hpp>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;
using Values = std::vector<float>;

struct Stream {
  Stream() = default;
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void wait() const { EXPECT_EQ(cudaStreamSynchronize(handle), cudaSuccess); }
  void copy(const MemoryRange& to, const MemoryRange& from) const {
    EXPECT_EQ(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, handle), cudaSuccess);
  }

  cudaStream_t handle = make_stream();
};

// What `work` gives to a stream.
class Graph {
 public:
  template <class Work>
  Graph(const Stream& stream, Work work) {
    EXPECT_EQ(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    EXPECT_EQ(cudaStreamEndCapture(stream.handle, &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Stream& stream) const { EXPECT_EQ(cudaGraphLaunch(executable_, stream.handle), cudaSuccess); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// The host may do nothing else there, so the memory is given back to nobody in the middle of it.
class AbandonedCapture {
 public:
  explicit AbandonedCapture(const Stream& stream) : stream_(stream) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_.handle, cudaStreamCaptureModeGlobal), cudaSuccess);
  }
  ~AbandonedCapture() {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_.handle, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    static_cast<void>(cudaGetLastError());
  }
  AbandonedCapture(const AbandonedCapture&) = delete;
  AbandonedCapture& operator=(const AbandonedCapture&) = delete;

 private:
  const Stream& stream_;
};

TEST(Capture, OfABatchNormalisationIsDoneWithEachLaunch) {
  run_ranks(2, [](int rank) {
    auto group = join();
    connect(group);
    const Stream stream;
    const CollectiveOptions options{.stream = stream.handle};
    const BatchShape shape{2, 1, 1, group.device()};
    const Array<float> x(group.device(), Values{static_cast<float>(rank), static_cast<float>(rank + 2)});
    const Array<float> mean(group.device(), Values(1)), of_bias(group.device(), Values(1)), of_x(group.device(), 2);
    const auto data = [](const Array<float>& values) { return static_cast<float*>(values.range().data); };
    BatchStatistics statistics;
    const auto step = [&] {
      sync_batch_norm_forward(group, shape, data(x), {.running_mean = data(mean)}, data(of_x), statistics,
                              {.momentum = 0.5, .collective = options});
      sync_batch_norm_backward(group, shape, data(x), data(x), statistics, nullptr, data(of_x), nullptr, data(of_bias),
                               options);
    };
    step();  // allocates
    {
      const Graph graph(stream, step);
      graph.launch(stream);
      graph.launch(stream);
      stream.wait();
    }
    EXPECT_THAT(mean.values(), ElementsAre(1.5F * 0.875F));  // of three steps, from 0 on
    EXPECT_THAT(of_bias.values(), ElementsAre(3 * static_cast<float>(2 * rank + 2)));
    group.barrier();
  });
}

TEST(Capture, OfCollectivesIsDoneWithEachLaunch) {
  run_ranks(2, [](int rank) {
    auto group = join();
    connect(group);
    const Stream stream;
    const CollectiveOptions options{.stream = stream.handle};
    const Array<float> values(group.device(), Values(10, 1));
    const Array<float> all(group.device(), Values(4, 0));
    const Array<float> own(group.device(), Values(2, static_cast<float>(rank + 1)));
    {
      const Graph graph(stream, [&] {
        Work sum = group.all_reduce_async(values.range(), ReduceOp::sum, options);
        EXPECT_FALSE(sum.is_completed());
        EXPECT_FALSE(sum.duration());
        sum.wait();
        group.all_gather(own.range(), all.range(), options);
      });
      for (int i = 0; i < 10; ++i) graph.launch(stream);
      stream.wait();
      EXPECT_THAT(values.values(), Each(1024.0F));
      EXPECT_THAT(all.values(), ElementsAre(1, 1, 2, 2));
    }
    // What follows on the same stream is in order behind it.
    group.all_reduce(values.range(), ReduceOp::sum, options);
    stream.wait();
    EXPECT_THAT(values.values(), Each(2048.0F));
    group.barrier();
  });
}

TEST(Capture, RefusesWhatTheHostWaitsForAndWhatIsNotPartOfIt) {
  run_ranks(1, [](int) {
    auto group = join();
    group.barrier();
    const Stream stream;
    const Stream other;
    const Array<float> values(group.device(), Values(10, 1));
    {
      const AbandonedCapture capture(stream);
      const CollectiveOptions options{.stream = stream.handle};
      const auto barrier = thrown_by<InvalidArgument>([&] { group.barrier(options); });
      Work work = group.all_reduce_async(values.range(), ReduceOp::sum, options);
      const auto beside = thrown_by<InvalidArgument>(
          [&] { group.all_reduce(values.range(), ReduceOp::sum, {.stream = other.handle}); });
      const auto wait = thrown_by<InvalidArgument>([&] { static_cast<void>(work.wait_for(std::chrono::seconds(1))); });
      const auto callback = thrown_by<InvalidArgument>([&] { work.on_completed([](std::exception_ptr) {}); });
      work.wait();
      ASSERT_TRUE(barrier && beside && wait && callback);
      EXPECT_THAT(barrier->what(), HasSubstr("barrier: the host waits for it"));
      EXPECT_THAT(beside->what(), HasSubstr("the stream of this one is not"));
      EXPECT_THAT(wait->what(), HasSubstr("Work::wait_for"));
      EXPECT_THAT(callback->what(), HasSubstr("Work::on_completed"));
    }
    group.all_reduce(values.range(), ReduceOp::sum, {.stream = other.handle});  // the group is as before
    group.barrier();
  });
}

// Three layers in buckets of their own, whose gradients are copies of what `inputs` holds.
struct Model {
  static constexpr std::size_t kLayers = 3;
  static constexpr std::size_t kCount = 1'000;

  Model(ProcessGroup& group, cudaStream_t stream, DistributedDataParallelOptions options = {})
      : weights(group.device(), Values(kLayers * kCount)), inputs(group.device(), Values(kLayers * kCount)) {
    options.collective.stream = stream;
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = kCount * sizeof(float);
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < kLayers; ++i) {
      parameters.push_back({"layer" + std::to_string(i), {kCount}, weights.part(i * kCount, kCount)});
    }
    ddp.emplace(group, parameters, options);
  }

  void step(const Stream& stream, std::size_t layers = kLayers) {
    auto step = ddp->begin_step();
    for (std::size_t i = kLayers; i-- > kLayers - layers;) {
      stream.copy(ddp->gradient(i), inputs.part(i * kCount, kCount));
      step.ready(i);
    }
    step.finish();
  }

  Values gradients(const Stream& stream) {
    stream.wait();
    Values all;
    for (std::size_t i = 0; i < kLayers; ++i) {
      const MemoryRange range = ddp->gradient(i);
      Values one(range.count);
      EXPECT_EQ(cudaMemcpy(one.data(), range.data, range.bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  Array<float> weights;
  Array<float> inputs;
  std::optional<DistributedDataParallel> ddp;
};

TEST(Capture, OfAStepGivesTheSameBitsInAThousandLaunches) {
  run_ranks(2, [](int rank) {
    auto group = join();
    connect(group);
    const Stream stream;
    Model model(group, stream.handle, {.rebuild_buckets = RebuildBuckets::automatic});
    Values inputs(Model::kLayers * Model::kCount);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = 1.0F / (static_cast<float>(i) + 3.0F * static_cast<float>(rank + 1));
    }
    model.inputs.write(inputs);
    for (int i = 0; i < 3; ++i) model.step(stream);
    const Values wanted = model.gradients(stream);
    const unsigned long synchronised = host_synchronisations();
    const Graph graph(stream, [&] { model.step(stream); });
    graph.launch(stream);
    EXPECT_EQ(host_synchronisations(), synchronised);
    EXPECT_EQ(model.gradients(stream), wanted);
    for (int i = 0; i < 1000; ++i) {
      graph.launch(stream);
      if (i % 100 == 99) {
        EXPECT_EQ(model.gradients(stream), wanted) << i;
      }
    }
    // A step that is not captured goes on from there, and so does the graph from that.
    model.inputs.write(Values(inputs.size(), static_cast<float>(rank)));
    model.step(stream);
    EXPECT_THAT(model.gradients(stream), Each(0.5F));
    model.inputs.write(inputs);
    graph.launch(stream);
    EXPECT_EQ(model.gradients(stream), wanted);
    model.ddp->check();
    group.barrier();
  });
}

TEST(Capture, OfAStepMayClipItsGradients) {
  run_ranks(1, [](int) {
    auto group = join();
    group.barrier();
    const Stream stream;
    Model model(group, stream.handle);
    const auto clipped_step = [&] {
      model.step(stream);
      return clip_gradients_by_norm(*model.ddp, 1);
    };
    model.inputs.write(Values(Model::kLayers * Model::kCount, 2));
    const double norm = clipped_step();
    EXPECT_NEAR(norm, 2 * std::sqrt(3000.0), 1e-9);
    std::optional<GradientNorm> in_graph;
    const Graph graph(stream, [&] { in_graph = clipped_step(); });
    EXPECT_THROW(static_cast<void>(in_graph->value()), InvalidArgument);
    for (const float input : {2.0F, 5.0F}) {
      model.inputs.write(Values(Model::kLayers * Model::kCount, input));
      graph.launch(stream);
      EXPECT_THAT(model.gradients(stream), Each(FloatNear(1 / std::sqrt(3000.0F), 1e-6F)));
    }
  });
}

TEST(Capture, OfAStepIsRefusedWhereStepsHaveSomethingToTell) {
  run_ranks(1, [](int) {
    auto group = join();
    const Stream stream;
    Model model(group, stream.handle, {.rebuild_buckets = RebuildBuckets::automatic});
    Model keeping(group, stream.handle, {.unused = Unused::keep});
    Model checking(group, stream.handle, {.check_finite = true});
    {
      const AbandonedCapture capture(stream);
      const auto early = thrown_by<GradientError>([&] { static_cast<void>(model.ddp->begin_step()); });
      const auto told = thrown_by<InvalidArgument>([&] { static_cast<void>(keeping.ddp->begin_step()); });
      const auto checked = thrown_by<InvalidArgument>([&] { static_cast<void>(checking.ddp->begin_step()); });
      ASSERT_TRUE(early && told && checked);
      EXPECT_THAT(checked->what(), HasSubstr("with check_finite"));
      EXPECT_THAT(early->what(), HasSubstr("where the buckets are"));
      EXPECT_THAT(told->what(), HasSubstr("unused and uneven_inputs"));
    }
    for (int i = 0; i < 3; ++i) model.step(stream);
    {
      const AbandonedCapture capture(stream);
      const auto missing = thrown_by<GradientError>([&] { model.step(stream, Model::kLayers - 1); });
      ASSERT_TRUE(missing);
      EXPECT_THAT(missing->what(), HasSubstr("parameter layer0 did not become ready"));
    }
    model.step(stream);
    model.ddp->check();
  });
}

// What looks after collectives hears of no launch, but the group fails as ever: by news of another rank here.
TEST(Capture, LaunchThatWaitsForARankEndsWithTheGroup) {
  Shared<std::atomic<bool>> is_launched;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    const Stream stream;
    const Array<float> values(group.device(), Values(10, 1));
    const CollectiveOptions options{.stream = stream.handle};
    const Graph graph(stream, [&] { group.all_reduce(values.range(), ReduceOp::sum, options); });
    if (rank == 0) {
      graph.launch(stream);
      *is_launched = true;
      stream.wait();
      const auto error = thrown_by<Error>([&] { group.all_reduce(values.range(), ReduceOp::sum, options); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("enough"));
    } else {
      wait_until([&] { return is_launched->load(); });
      group.abort("enough");
    }
  });
}

}  // namespace
}  // namespace ddp::nccl_test
