// The bandwidth of libddp's kernels on gradients, as a part of what cudaMemcpyAsync from device to device reaches with
// as many bytes.
//
//   gpu_gradient_kernels_benchmark [--mib=256] [--rounds=9] [--json=FILE]
//
// Of this many MiB of gradients, and of 25 MiB, which is a bucket. The bandwidth counts each byte that is read, and
// each that is written; a copy does both. A round goes over enough memory that the GPU's caches hold none of it from
// the round before. The kernels and the copy take turns; a figure is the median of the rounds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "benchmarks/gpu/shared_gpu.hpp"
#include "worker_runtime/backends/nccl/batch_norm_kernels.hpp"
#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"
#include "worker_runtime/backends/nccl/hash_kernel.hpp"
#include "worker_runtime/backends/nccl/nccl_backend.hpp"

namespace {

using namespace ddp::benchmarks;
namespace kernels = ddp::nccl_backend::kernels;
using ddp::DataType;

constexpr std::size_t kMiB = 1U << 20;
constexpr std::size_t kBucketMiB = 25;

constexpr int kFiniteByte = 0x3c;  // a number of each type that is made of such bytes is finite, and not 0

struct Timer {
  Timer() { check(cudaEventCreate(&begin)), check(cudaEventCreate(&end)); }
  ~Timer() { static_cast<void>(cudaEventDestroy(begin)), static_cast<void>(cudaEventDestroy(end)); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  cudaEvent_t begin = nullptr, end = nullptr;
};

// A kernel on the bytes from an offset on.
struct Kernel {
  std::string name;
  double passes;  // over the bytes, in either direction
  std::function<cudaError_t(std::size_t offset)> launch;
  std::vector<double> times{};  // ms
};

// ms of a call, with the device's queue full.
double time(const Kernel& kernel, std::size_t bytes, std::size_t calls, cudaStream_t stream) {
  const Timer timer;
  check(kernel.launch(0));
  check(cudaEventRecord(timer.begin, stream));
  for (std::size_t i = 0; i < calls; ++i) check(kernel.launch(i * bytes));
  check(cudaEventRecord(timer.end, stream));
  check(cudaStreamSynchronize(stream));
  float took = 0;
  check(cudaEventElapsedTime(&took, timer.begin, timer.end));
  return static_cast<double>(took) / static_cast<double>(calls);
}

kernels::Batch batch_of(std::byte* at, std::size_t bytes, DataType type) {
  kernels::Batch batch;
  batch.type = type;
  batch.count = 1;
  batch.ranges[0] = {at, bytes / ddp::size_of(type)};
  return batch;
}

// A step of an optimizer on as many bytes, which its arrays share: parameters, gradients and state, one behind the
// other.
void add_updates(std::vector<Kernel>& all, std::size_t bytes, const Memory& values, const Memory& others,
                 cudaStream_t stream) {
  const ddp::tensor::AdamWNumbers adam_w{1, 1, 0.1F, 0.999F, 0.001F, 1e-3F, 1, 1e-8F};
  const ddp::tensor::SgdNumbers sgd{1, 1e-3F, 0.01F, 0.9F, 0.9F, false};
  // states: arrays of float32 beside the parameter's. 16 bits: gradients and the rounded parameters are of bfloat16.
  const auto pieces_of = [&, bytes](std::size_t offset, std::size_t states, bool is_16_bits) {
    const std::size_t in_values = (1 + states) * sizeof(float);
    kernels::PieceBatch batch;
    batch.type = is_16_bits ? DataType::bfloat16 : DataType::float32;
    const std::size_t count = bytes / in_values;
    auto* const p = reinterpret_cast<float*>(values.at(offset));
    batch.pieces[batch.count++] = {p,
                                   others.at(offset),
                                   states > 0 ? p + count : nullptr,
                                   states > 1 ? p + 2 * count : nullptr,
                                   is_16_bits ? others.at(offset) + count * sizeof(std::uint16_t) : nullptr,
                                   count};
    return batch;
  };
  // Over the bytes of one array.
  const auto passes = [](double arrays, double states) { return arrays / (1 + states); };
  all.push_back({"AdamW, float32", passes(7, 2),
                 [=](std::size_t offset) { return kernels::update(pieces_of(offset, 2, false), adam_w, stream); }});
  all.push_back({"AdamW, bfloat16 with float32 masters", passes(7, 2),
                 [=](std::size_t offset) { return kernels::update(pieces_of(offset, 2, true), adam_w, stream); }});
  all.push_back({"SGD with momentum, float32", passes(5, 1),
                 [=](std::size_t offset) { return kernels::update(pieces_of(offset, 1, false), sgd, stream); }});
  all.push_back({"SGD, float32", passes(3, 0),
                 [=](std::size_t offset) { return kernels::update(pieces_of(offset, 0, false), sgd, stream); }});
}

// What a batch normalisation needs beside the batch; zeros are finite numbers for it.
struct Statistics {
  static constexpr std::size_t kChannelsMax = 1024;
  Memory numbers{2 * ddp::tensor::batch_norm_numbers(kChannelsMax) * sizeof(double)};
  Memory partials{16 * kMiB};
  double* at(std::size_t index) const { return reinterpret_cast<double*>(numbers.data()) + index; }
};

void add_batch_norm(std::vector<Kernel>& all, std::size_t bytes, const Memory& values, const Memory& others,
                    const Statistics& statistics, cudaStream_t stream) {
  constexpr std::size_t kChannels = Statistics::kChannelsMax / 4;
  const std::size_t elements = bytes / sizeof(float);
  const auto batch_of_points = [=](std::size_t channels, std::size_t points) {
    return ddp::BatchShape{elements / (channels * points), channels, points};
  };
  const struct {
    std::string name;
    ddp::BatchShape shape;
  } cases[] = {{"images of 56 * 56", batch_of_points(kChannels / 4, 56 * 56)},
               {"images of 7 * 7", batch_of_points(kChannels, 7 * 7)},
               {"vectors of 1024", batch_of_points(Statistics::kChannelsMax, 1)}};
  for (const auto& [name, shape] : cases) {
    const auto part = static_cast<double>(shape.size()) / static_cast<double>(elements);  // the rest is no whole sample
    auto* const partials = reinterpret_cast<double*>(statistics.partials.data());
    if (ddp::nccl_backend::kernels::batch_norm_partials(shape) * sizeof(double) > 16 * kMiB) continue;
    const auto floats = [](std::byte* at) { return reinterpret_cast<float*>(at); };
    const auto forward = [&values, &others, &statistics, shape = shape, floats](std::size_t offset) {
      return ddp::tensor::BatchNormForward{.shape = shape,
                                           .x = floats(values.at(offset)),
                                           .y = floats(others.at(offset)),
                                           .epsilon = 1e-5,
                                           .momentum = 0.1,
                                           .moments = statistics.at(ddp::tensor::batch_norm_numbers(shape.channels)),
                                           .statistics = statistics.at(0)};
    };
    // In place of the gradients that it reads.
    const auto backward = [&values, &others, &statistics, shape = shape, floats](std::size_t offset) {
      return ddp::tensor::BatchNormBackward{.shape = shape,
                                            .of_y = floats(others.at(offset)),
                                            .x = floats(values.at(offset)),
                                            .of_x = floats(others.at(offset)),
                                            .statistics = statistics.at(0),
                                            .sums = statistics.at(ddp::tensor::batch_norm_numbers(shape.channels))};
    };
    all.push_back({"batch statistics, " + name, part,
                   [=](std::size_t offset) { return kernels::begin_batch_norm(forward(offset), partials, stream); }});
    all.push_back({"normalise, " + name, 2 * part,
                   [=](std::size_t offset) { return kernels::end_batch_norm(forward(offset), stream); }});
    all.push_back({"sums of gradients, " + name, 2 * part,
                   [=](std::size_t offset) { return kernels::begin_batch_norm(backward(offset), partials, stream); }});
    all.push_back({"gradients of a normalisation, " + name, 3 * part,
                   [=](std::size_t offset) { return kernels::end_batch_norm(backward(offset), stream); }});
  }
}

void measure(Figures& figures, std::size_t mib, std::size_t rounds, cudaStream_t stream) {
  const std::size_t bytes = mib * kMiB;
  const std::size_t calls = std::clamp<std::size_t>(512 / mib, 2, 20);
  const Memory values(calls * bytes), others(calls * bytes), partials((kernels::kPartials + 1) * sizeof(double));
  const Memory flag(sizeof(std::int32_t));
  auto* const norm = reinterpret_cast<double*>(partials.at(0));
  auto* const found = reinterpret_cast<std::int32_t*>(flag.at(0));
  std::vector<Kernel> all;
  all.push_back({"a copy", 2, [&](std::size_t offset) {
                   return cudaMemcpyAsync(others.at(offset), values.at(offset), bytes, cudaMemcpyDeviceToDevice,
                                          stream);
                 }});
  for (const DataType type : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16}) {
    const std::string of_type = std::string(", ") + ddp::name_of(type);
    const auto batch = [&values, bytes, type](std::size_t offset) { return batch_of(values.at(offset), bytes, type); };
    const auto sum = [=](std::size_t offset) { return kernels::sum_squares(batch(offset), norm + 1, stream); };
    const auto clip = [=](std::size_t offset, double norm_max) {
      const cudaError_t code = sum(offset);
      if (code != cudaSuccess) return code;
      return kernels::clip(batch(offset), norm + 1, kernels::kPartials, norm_max, norm, stream);
    };
    all.push_back({"scale" + of_type, 2,
                   [=](std::size_t offset) { return kernels::scale(batch(offset), 1.5, nullptr, stream); }});
    all.push_back(
        {"clamp" + of_type, 2, [=](std::size_t offset) { return kernels::clamp(batch(offset), 1.5, stream); }});
    all.push_back({"find what is not finite" + of_type, 1,
                   [=](std::size_t offset) { return kernels::find_non_finite(batch(offset), found, stream); }});
    all.push_back({"the norm" + of_type, 1, [=](std::size_t offset) {
                     const cudaError_t code = sum(offset);
                     return code == cudaSuccess ? kernels::norm(norm + 1, kernels::kPartials, norm, stream) : code;
                   }});
    // A norm is above -1 before a clip and after it.
    all.push_back({"clip by the norm" + of_type, 3, [=](std::size_t offset) { return clip(offset, -1); }});
    all.push_back(
        {"clip by the norm, nothing to do" + of_type, 1, [=](std::size_t offset) { return clip(offset, 1e30); }});
  }
  for (const DataType type : {DataType::float16, DataType::bfloat16}) {
    const std::size_t count = bytes / sizeof(float);
    all.push_back({std::string("float32 to ") + ddp::name_of(type), 1.5, [&, count, type](std::size_t offset) {
                     return kernels::narrow(reinterpret_cast<const float*>(values.at(offset)), others.at(offset), count,
                                            type, stream);
                   }});
    all.push_back({std::string(ddp::name_of(type)) + " to float32", 1.5, [&, count, type](std::size_t offset) {
                     return kernels::widen(others.at(offset), reinterpret_cast<float*>(values.at(offset)), count, type,
                                           stream);
                   }});
  }
  const Memory hash(sizeof(std::uint64_t));
  all.push_back({"hash", 1, [&](std::size_t offset) {
                   return kernels::add_hashes(batch_of(values.at(offset), bytes, DataType::uint8),
                                              reinterpret_cast<std::uint64_t*>(hash.at(0)), stream);
                 }});
  add_updates(all, bytes, values, others, stream);
  const Statistics statistics;
  add_batch_norm(all, bytes, values, others, statistics, stream);
  for (std::size_t round = 0; round <= rounds; ++round) {
    for (Kernel& kernel : all) {
      check(cudaMemsetAsync(values.at(0), kFiniteByte, calls * bytes, stream));
      const double took = time(kernel, bytes, calls, stream);
      if (round > 0) kernel.times.push_back(took);  // the first loads the kernels
    }
  }
  const std::string of_size = ", " + std::to_string(mib) + " MiB";
  const auto bandwidth = [&](const Kernel& kernel) {  // GB/s
    return kernel.passes * static_cast<double>(bytes) / median(kernel.times) / 1e6;
  };
  figures.add("a copy from device to device" + of_size, bandwidth(all.front()), "GB/s", 0);
  for (auto kernel = all.begin() + 1; kernel != all.end(); ++kernel) {
    figures.add(kernel->name + of_size, bandwidth(*kernel) / bandwidth(all.front()) * 100, "% of the copy's bandwidth",
                1);
  }
}

// What the host spends on a clip of many buckets, in us.
double host_time_of_clip(std::size_t buckets, std::size_t rounds, cudaStream_t stream) {
  const Memory values(buckets * kMiB);
  const auto device = ddp::nccl_backend::make_cuda_arithmetic(0, ddp::nccl_backend::memory_of_device(0));
  std::vector<ddp::MemoryRange> ranges;
  for (std::size_t i = 0; i < buckets; ++i) {
    ranges.emplace_back(values.at(i * kMiB), kMiB / sizeof(float), DataType::float32,
                        ddp::Device{ddp::Device::Kind::cuda, 0});
  }
  std::vector<double> times;
  for (std::size_t round = 0; round < 20 * rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    static_cast<void>(device->clip_by_norm(ranges, 1, stream));
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    check(cudaStreamSynchronize(stream));
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv, {{"mib", 256, 4'096}, {"rounds", 9, 1'000}});
  try {
    static_cast<void>(ddp::nccl_test::take_place());
    Figures figures("gradient_kernels");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    measure(figures, numbers["mib"], numbers["rounds"], stream);
    if (numbers["mib"] > kBucketMiB) measure(figures, kBucketMiB, numbers["rounds"], stream);
    figures.add("host time of a clip of 40 buckets", host_time_of_clip(40, numbers["rounds"], stream), "us", 1);
    check(cudaStreamDestroy(stream));
    figures.write(numbers.json());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
