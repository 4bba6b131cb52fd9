// What ShardedOptimizer takes of memory with AdamW, beside the formulas of sharded_optimizer.hpp: 16 parameters of
// 1024 * 1024 elements, each in a bucket of its own.
//
//   ddprun --standalone --nproc-per-node=N build/release/bin/sharded_memory_benchmark
//
// Bytes for each parameter, the mean of the ranks of one host: their anonymous memory, and what is allocated in the
// files of shared memory, each page counted once. What the process has after a warm-up of the collectives is
// subtracted.
//   made     when the model is made, before the first step
//   at rest  after four steps
//   highest  at a ready() of the fifth step, in buckets above `at rest`
//   rebuilt  after rebuild_buckets(), before the next step
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddp/ddp.hpp>

namespace {

constexpr std::size_t kTensors = 16, kElements = 1024 * 1024;
constexpr int kSteps = 4;

struct Case {
  const char* name;
  ddp::Sharding sharding;
  double whole_bytes, divided_bytes;  // of the formula: by each rank, and by all ranks together
};

// In bytes.
double anonymous_memory() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    double kib = 0;
    if (std::sscanf(line.c_str(), "Anonymous: %lf kB", &kib) == 1) return kib * 1024;
  }
  throw std::runtime_error("no Anonymous in /proc/self/smaps_rollup");
}

// Of all ranks, in bytes: each file has the parts of all of them.
double shared_memory() {
  double bytes = 0;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().find("memfd:") == std::string::npos) continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) != 0 || !seen.emplace(status.st_dev, status.st_ino).second) continue;
    bytes += static_cast<double>(status.st_blocks) * 512;
  }
  return bytes;
}

// Collective: the mean of the ranks. Nothing changes meanwhile.
double resident_memory(ddp::ProcessGroup& group) {
  group.barrier();
  double bytes = anonymous_memory() + (group.rank() == 0 ? shared_memory() : 0);
  group.all_reduce(ddp::MemoryRange(&bytes, 1, ddp::DataType::float64), ddp::ReduceOp::average);
  return bytes;
}

// Values or gradients that are not zero.
void fill(const ddp::MemoryRange& range, std::uint16_t upper_half) {
  const std::size_t width = ddp::size_of(range.type);
  auto* const bytes = static_cast<std::uint8_t*>(range.data);
  for (std::size_t i = 0; i < range.count; ++i) std::memcpy(bytes + (i + 1) * width - 2, &upper_half, 2);
}

void measure(ddp::ProcessGroup& world, ddp::ProcessGroup& other, ddp::DataType type, const Case& its) {
  const double base = resident_memory(other);
  const auto bytes_for_each = [&] { return (resident_memory(other) - base) / (kTensors * kElements); };
  std::vector<std::vector<std::uint8_t>> memory;
  std::vector<ddp::Parameter> parameters;
  for (std::size_t p = 0; p < kTensors; ++p) {
    memory.emplace_back(kElements * ddp::size_of(type));
    const ddp::MemoryRange values(memory.back().data(), kElements, type);
    fill(values, 0x3c00);
    parameters.push_back({"p" + std::to_string(p), {1024, 1024}, values});
  }
  const std::size_t bucket_bytes = kElements * ddp::size_of(type);
  ddp::ShardedOptimizer optimizer(world, parameters, ddp::AdamWOptions{}, its.sharding);
  ddp::DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = bucket_bytes;
  optimizer.prepare(options);
  ddp::DistributedDataParallel model(world, parameters, options);
  const double made = bytes_for_each();
  double highest = 0;
  const auto train = [&](bool is_watched) {
    optimizer.wait();
    auto step = model.begin_step();
    for (std::size_t p = kTensors; p-- > 0;) {
      fill(model.gradient(p), 0x3c00);
      if (is_watched) highest = std::max(highest, bytes_for_each());
      step.ready(p);
      if (is_watched) highest = std::max(highest, bytes_for_each());
    }
    step.finish();
    optimizer.step();
    optimizer.wait();
  };
  for (int i = 0; i < kSteps; ++i) train(false);
  const double at_rest = bytes_for_each();
  train(true);
  model.rebuild_buckets();
  const double rebuilt = bytes_for_each();
  if (world.rank() != 0) return;
  const double wanted = its.whole_bytes + its.divided_bytes / world.size();
  const double of_bucket = static_cast<double>(bucket_bytes) / (kTensors * kElements);
  std::printf("| %s, %s | %d | %.2f | %.2f | %+.1f %% | %.2f | %.2f | %.2f |\n", ddp::name_of(type), its.name,
              world.size(), wanted, at_rest, 100 * (at_rest / wanted - 1), (highest - at_rest) / of_bucket, made,
              rebuilt);
}

// So that what the collectives keep for themselves is there before.
void warm_up(ddp::ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<float> all(kElements / ranks * ranks), part(kElements / ranks);
  group.all_reduce(all);
  group.reduce_scatter(all, part);
  group.broadcast(all, 0);
  group
      .coalesce([&] {
        for (std::size_t rank = 0; rank < ranks; ++rank)
          static_cast<void>(group.broadcast_async(part, static_cast<int>(rank)));
      })
      .wait();
}

}  // namespace

int main() {
  ::mallopt(M_MMAP_THRESHOLD, 128 * 1024);  // freed memory goes back to the system
  try {
    auto world = ddp::init_process_group();
    auto other = world.split(0);
    warm_up(world);
    warm_up(other);
    if (world.rank() == 0) {
      std::printf("| | ranks | formula | at rest | | highest, buckets more | made | rebuilt |\n");
      std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    }
    const Case of_float32[] = {{"none", ddp::Sharding::none, 16, 0},
                               {"optimizer", ddp::Sharding::optimizer, 8, 8},
                               {"gradients", ddp::Sharding::gradients, 4, 12}};
    const Case of_bfloat16[] = {{"none", ddp::Sharding::none, 16, 0},
                                {"optimizer", ddp::Sharding::optimizer, 4, 12},
                                {"gradients", ddp::Sharding::gradients, 2, 14}};
    for (const Case& each : of_float32) measure(world, other, ddp::DataType::float32, each);
    for (const Case& each : of_bfloat16) measure(world, other, ddp::DataType::bfloat16, each);
    world.barrier();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
