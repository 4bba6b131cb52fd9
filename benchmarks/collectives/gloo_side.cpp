// Gloo's ranks for collectives_benchmark, with its best settings: gloo_side SOCKET RANK RANKS FOLDER ring|bcube
// The folder is where ranks find each other. TCP on loopback, which is the only transport of Debian's package.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/common/sides/collective_side.hpp"

namespace {

#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void add(float* out, const float* a, const float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

class GlooSide : public ddp::benchmarks::PlainMemorySide {
 public:
  GlooSide(int rank, int ranks, const std::string& folder, bool ring)
      : PlainMemorySide(rank, ranks),
        context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)),
        algorithm_(ring ? gloo::AllreduceOptions::Algorithm::RING : gloo::AllreduceOptions::Algorithm::BCUBE) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store, device);
  }

 private:
  void all_reduce(float* data, std::size_t count) override {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(algorithm_);
    options.setOutput(data, count);
    options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
      add(static_cast<float*>(out), static_cast<const float*>(a), static_cast<const float*>(b), n);
    });
    gloo::allreduce(options);
  }
  void broadcast(float* data, std::size_t count) override {
    gloo::BroadcastOptions options(context_);
    options.setRoot(0);
    options.setOutput(data, count);
    gloo::broadcast(options);
  }
  void all_gather(float* data, std::size_t part) override {
    gloo::AllgatherOptions options(context_);
    options.setInput(data + static_cast<std::size_t>(rank()) * part, part);
    options.setOutput(data, part * static_cast<std::size_t>(ranks()));
    gloo::allgather(options);
  }
  // Its only one works in place and is made for its buffer, so it stays until there is another.
  void reduce_scatter(const float* input, float* output, std::size_t part) override {
    auto* const data = const_cast<float*>(input);
    if (reduce_scatter_ == nullptr || reduce_scatter_of_ != std::pair(data, part)) {
      reduce_scatter_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, std::vector<float*>{data}, static_cast<int>(part) * ranks(),
          std::vector<int>(static_cast<std::size_t>(ranks()), static_cast<int>(part)), &sum_);
      reduce_scatter_of_ = {data, part};
    }
    reduce_scatter_->run();
    std::memcpy(output, data, part * sizeof(float));
  }
  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  gloo::AllreduceOptions::Algorithm algorithm_;
  const gloo::ReductionFunction<float> sum_{gloo::SUM,
                                            [](float* a, const float* b, std::size_t n) { add(a, a, b, n); }};
  std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter_;
  std::pair<float*, std::size_t> reduce_scatter_of_{};
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) throw std::invalid_argument("it takes SOCKET RANK RANKS FOLDER ring|bcube");
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH,
                       &none);  // wakers are then not preempted by whom they wake; its threads inherit it
  const int rank = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  GlooSide side(rank, ranks, argv[4], std::string(argv[5]) == "ring");
  ddp::benchmarks::RankLink link(argv[1], rank);
  ddp::benchmarks::serve(side, link, rank, ranks);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\nwhere: a rank of Gloo\ntry:   collectives_benchmark starts it\n", error.what());
  return 1;
}
