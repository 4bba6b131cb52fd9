#include "tests/integration/engine_batch_norm.hpp"

#include <ddp/sync_batch_norm.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

#include "tests/integration/engine_numbers.hpp"

namespace ddp::test {
namespace {

constexpr std::size_t kChannels = 3, kPoints = 4;
constexpr std::array<std::size_t, 2> kBatches[] = {{5, 3}, {4, 0}, {0, 6}};  // samples of each rank, in each step

Floats plus(Floats values, float more) {
  for (float& each : values) each += more;
  return values;
}

Floats part(const Floats& all, std::size_t first, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

double batch_norm_difference(ProcessGroup world, const std::string& folder) {
  const Floats wanted = read_floats(folder + "/batch_norm.f32");
  const auto rank = static_cast<std::size_t>(world.rank());
  const Floats weight = plus(numbers(kChannels, 6000), 2), bias = numbers(kChannels, 6001);
  Floats mean(kChannels), variance(kChannels, 1);
  std::size_t next = 0;
  double largest = 0;
  // first: of this rank in what all ranks have together; count: of that.
  const auto compare = [&](const Floats& ours, std::size_t first, std::size_t count) {
    if (wanted.size() < next + count) throw std::runtime_error("batch_norm.f32 is too short");
    largest = std::max(largest, largest_difference(ours, wanted.data() + next + first));
    next += count;
  };
  std::int64_t seed = 6010;
  for (const auto& batches : kBatches) {
    const std::size_t sample = kChannels * kPoints, all = (batches[0] + batches[1]) * sample;
    const std::size_t first = rank == 0 ? 0 : batches[0] * sample;
    const BatchShape shape{batches[rank], kChannels, kPoints};
    const Floats x = part(plus(numbers(static_cast<std::int64_t>(all), seed), 3), first, shape.size());
    const Floats of_y = part(numbers(static_cast<std::int64_t>(all), seed + 1), first, shape.size());
    seed += 2;
    Floats y(shape.size()), of_x(shape.size()), of_weight(kChannels), of_bias(kChannels);
    const BatchStatistics statistics = sync_batch_norm_forward(
        world, shape, x.data(), {weight.data(), bias.data(), mean.data(), variance.data()}, y.data());
    sync_batch_norm_backward(world, shape, of_y.data(), x.data(), statistics, weight.data(), of_x.data(),
                             of_weight.data(), of_bias.data());
    world.all_reduce(of_weight);
    world.all_reduce(of_bias);
    compare(y, first, all);
    compare(mean, 0, kChannels);
    compare(variance, 0, kChannels);
    compare(of_x, first, all);
    compare(of_weight, 0, kChannels);
    compare(of_bias, 0, kChannels);
  }
  if (next != wanted.size()) throw std::runtime_error("batch_norm.f32 is too long");
  world.all_reduce(MemoryRange(&largest, 1, DataType::float64), ReduceOp::max);
  return largest;
}

}  // namespace ddp::test
