#include "tests/integration/engine_batch_norm.hpp"

#include <ddp/distributed_data_parallel.hpp>
#include <ddp/sync_batch_norm.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

#include "tests/integration/engine_layers.hpp"
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

// What PyTorch came to, compared piece by piece.
class Reference {
 public:
  explicit Reference(const std::string& path) : path_(path), wanted_(read_floats(path)) {}

  // first: of this rank in what all ranks have together; count: of that.
  void compare(const Floats& ours, std::size_t first, std::size_t count) {
    if (wanted_.size() < next_ + count) throw std::runtime_error(path_ + " is too short");
    largest_ = std::max(largest_, largest_difference(ours, wanted_.data() + next_ + first));
    next_ += count;
  }
  void compare(const Floats& ours) { compare(ours, 0, ours.size()); }

  // Collective: the largest difference on any rank.
  double finish(ProcessGroup& world) {
    if (next_ != wanted_.size()) throw std::runtime_error(path_ + " is too long");
    world.all_reduce(MemoryRange(&largest_, 1, DataType::float64), ReduceOp::max);
    return largest_;
  }

 private:
  std::string path_;
  Floats wanted_;
  std::size_t next_ = 0;
  double largest_ = 0;
};

}  // namespace

double batch_norm_difference(ProcessGroup world, const std::string& folder) {
  Reference reference(folder + "/batch_norm.f32");
  const auto rank = static_cast<std::size_t>(world.rank());
  const Floats weight = plus(numbers(kChannels, 6000), 2), bias = numbers(kChannels, 6001);
  Floats mean(kChannels), variance(kChannels, 1);
  std::int64_t seed = 6010;
  BatchStatistics statistics;
  for (const auto& batches : kBatches) {
    const std::size_t sample = kChannels * kPoints, all = (batches[0] + batches[1]) * sample;
    const std::size_t first = rank == 0 ? 0 : batches[0] * sample;
    const BatchShape shape{batches[rank], kChannels, kPoints};
    const Floats x = part(plus(numbers(static_cast<std::int64_t>(all), seed), 3), first, shape.size());
    const Floats of_y = part(numbers(static_cast<std::int64_t>(all), seed + 1), first, shape.size());
    seed += 2;
    Floats y(shape.size()), of_x(shape.size()), of_weight(kChannels), of_bias(kChannels);
    sync_batch_norm_forward(world, shape, x.data(), {weight.data(), bias.data(), mean.data(), variance.data()},
                            y.data(), statistics);
    sync_batch_norm_backward(world, shape, of_y.data(), x.data(), statistics, weight.data(), of_x.data(),
                             of_weight.data(), of_bias.data());
    world.all_reduce(of_weight);
    world.all_reduce(of_bias);
    reference.compare(y, first, all);
    reference.compare(mean);
    reference.compare(variance);
    reference.compare(of_x, first, all);
    reference.compare(of_weight);
    reference.compare(of_bias);
  }
  return reference.finish(world);
}

double batch_norm_training_difference(ProcessGroup world, const std::string& folder) {
  constexpr int kSteps = 100, kInputs = 24, kNormalised = 8, kOutputs = 4, kRows = 12;
  Reference reference(folder + "/batch_norm_training.f32");
  ProcessGroup statistics_group = world.split(0);
  std::array<Floats, 6> values;  // weight and bias of the first layer, of the normalisation, of the last layer
  const std::array<std::vector<std::int64_t>, 6> shapes{
      {{kNormalised, kInputs}, {kNormalised}, {kNormalised}, {kNormalised}, {kOutputs, kNormalised}, {kOutputs}}};
  std::vector<Parameter> parameters;
  for (std::size_t p = 0; p < values.size(); ++p) {
    const std::int64_t count = shapes[p][0] * (shapes[p].size() == 2 ? shapes[p][1] : 1);
    values[p] = numbers(count, 7000 + static_cast<std::int64_t>(p));
    for (float& each : values[p]) each /= 4;
    if (p == 2) values[p] = plus(values[p], 1);
    parameters.push_back({"parameter " + std::to_string(p), shapes[p], values[p]});
  }
  DistributedDataParallel model(world, parameters);
  const auto gradient = [&](std::size_t p) { return static_cast<float*>(model.gradient(p).data); };
  const auto layer = [&](std::size_t p, int outputs, int inputs) {
    return Layer{values[p].data(), values[p + 1].data(), gradient(p), gradient(p + 1), outputs, inputs};
  };
  Floats mean(kNormalised), variance(kNormalised, 1);
  BatchStatistics statistics;
  for (int number = 0; number < kSteps; ++number) {
    const int of_rank_0 = number * 5 % (kRows + 1);
    const int rows = world.rank() == 0 ? of_rank_0 : kRows - of_rank_0, first_row = world.rank() == 0 ? 0 : of_rank_0;
    const auto own_rows = [&](const Floats& all, int columns) {
      const auto width = static_cast<std::size_t>(columns);
      return Matrix(rows, columns,
                    part(all, static_cast<std::size_t>(first_row) * width, static_cast<std::size_t>(rows) * width));
    };
    const Matrix x = own_rows(plus(numbers(kRows * kInputs, 8000 + 2 * number), 3), kInputs);
    const Matrix y = own_rows(numbers(kRows * kOutputs, 8001 + 2 * number), kOutputs);
    const BatchShape shape{static_cast<std::size_t>(rows), kNormalised, 1};
    auto step = model.begin_step();
    const Layer first = layer(0, kNormalised, kInputs), last = layer(4, kOutputs, kNormalised);
    const Matrix before = first.forward(x);
    Matrix normal(rows, kNormalised);
    sync_batch_norm_forward(statistics_group, shape, before.values.data(),
                            {values[2].data(), values[3].data(), mean.data(), variance.data()}, normal.values.data(),
                            statistics);
    const Matrix hidden = softsign(normal);
    Matrix out = last.forward(hidden);
    reference.compare(out.values, static_cast<std::size_t>(first_row * kOutputs), kRows * kOutputs);
    // The loss is the mean over the joined batch: the mean over ranks of this.
    for (std::size_t i = 0; i < out.values.size(); ++i) {
      out.values[i] = static_cast<float>(2 * world.size()) * (out.values[i] - y.values[i]) / (kRows * kOutputs);
    }
    const Matrix of_normal = through_softsign(normal, last.backward(hidden, out));
    step.ready(4);
    step.ready(5);
    Matrix of_before(rows, kNormalised);
    sync_batch_norm_backward(statistics_group, shape, of_normal.values.data(), before.values.data(), statistics,
                             values[2].data(), of_before.values.data(), gradient(2), gradient(3));
    step.ready(2);
    step.ready(3);
    first.backward(x, of_before);
    step.ready(0);
    step.ready(1);
    step.finish();
    reference.compare(mean);
    reference.compare(variance);
    for (std::size_t p = 0; p < values.size(); ++p) {
      const Floats of_p(gradient(p), gradient(p) + values[p].size());
      if (p == 2 || p == 3) reference.compare(of_p);
      for (std::size_t i = 0; i < of_p.size(); ++i) values[p][i] -= 0.05F * of_p[i];
    }
  }
  for (const Floats& each : values) reference.compare(each);
  return reference.finish(world);
}

}  // namespace ddp::test
