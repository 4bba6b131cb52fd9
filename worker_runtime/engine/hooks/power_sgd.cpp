// Where a rank's bytes go: docs/gradient_engine.md. The steps, as in the paper's algorithm 1 and 2:
//   stage 0  gradient += error; p = gradient * q; the p of all parameters of the bucket are averaged, and with them, in
//            the same all-reduce, what is not compressed
//   stage 1  orthogonalize p; q = transposed gradient * p; the q are averaged
//   stage 2  gradient = p * transposed q; error = what the gradient was - what it is
// The average of p takes the place of the paper's sum: it makes no difference before p is orthogonalized.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"
#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "worker_runtime/engine/hooks/exact_text.hpp"
#include "worker_runtime/engine/hooks/hook_steps.hpp"
#include "worker_runtime/engine/hooks/host_gradients_only.hpp"
#include "worker_runtime/engine/hooks/matrix.hpp"
#include "worker_runtime/engine/hooks/unsent_gradients.hpp"
#include "worker_runtime/tensor/arithmetic.hpp"

namespace ddp {
namespace {

using gradient_engine::MatrixSize;

[[noreturn]] void refuse_power_sgd(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: power_sgd\ntry:   " + advice);
}

// Of one parameter that is compressed.
struct Compressed {
  std::string name;
  MatrixSize size;
  std::size_t rank = 0;
  std::vector<float> error;  // of as many elements as the gradient; empty without error feedback
  std::vector<float> q;      // [rank, columns]
};

class PowerSgd : public CommunicationHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {}

  std::string describe() const override {
    return "power_sgd of rank " + std::to_string(options_.rank) +
           ", start_step = " + std::to_string(options_.start_step) +
           ", compression_rate_min = " + gradient_engine::exact_text(options_.compression_rate_min) +
           ", error_feedback = " + (options_.error_feedback ? "true" : "false") +
           ", warm_start = " + (options_.warm_start ? "true" : "false") +
           ", epsilon = " + gradient_engine::exact_text(options_.epsilon) + ", seed = " + std::to_string(options_.seed);
  }

  bool averages_over_all_ranks() const override { return true; }

  void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) override;
  void gradients_end() noexcept override { memory_ = {}; }
  void parameters_unused(const std::vector<std::size_t>& parameters) noexcept override {
    unsent_.take_back(parameters);
  }
  std::optional<Work> next(const HookCall& call) override;
  std::vector<Parameter> state() override;

 private:
  struct Part {  // of a bucket
    float* gradient = nullptr;
    std::size_t count = 0;
    Compressed* compressed = nullptr;  // null: averaged as it is
    float* sent = nullptr;             // p, or the gradient itself
    float* q = nullptr;                // [rank, columns]
  };
  struct Plan {  // of a bucket
    std::vector<Part> parts;
    MemoryRange sent;  // all p and what is not compressed
    MemoryRange q;     // empty: nothing is compressed
  };

  Compressed* compress(const Parameter& parameter);
  void draw(Compressed& its) const;
  Work average(const HookCall& call, const MemoryRange& range) const {
    return call.group.all_reduce_async(range, ReduceOp::average, call.options);
  }
  void send_first_factors(Plan& plan);
  void send_second_factors(Plan& plan);
  void multiply(Plan& plan);

  PowerSgdOptions options_;
  std::map<std::string, Compressed> compressed_;  // by the parameter's name
  std::vector<Plan> plans_;                       // by bucket
  gradient_engine::UnsentGradients unsent_;       // the errors of compressed_
  RegisteredMemory memory_;                       // of what is sent
  gradient_engine::HookSteps steps_;
};

void PowerSgd::begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) {
  gradient_engine::require_float32_on_host(buckets, "power_sgd");
  plans_.clear();
  unsent_.clear();
  std::size_t count = 0;
  for (const GradientBucket& bucket : buckets) {
    Plan& plan = plans_.emplace_back();
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const Parameter& parameter = bucket.parameters[i];
      Part part{static_cast<float*>(parameter.values.data), parameter.values.count, compress(parameter)};
      if (part.compressed != nullptr) {
        unsent_.add(bucket.indices[i], parameter.values, part.compressed->error);
        plan.sent.count += part.compressed->rank * part.compressed->size.rows;
        plan.q.count += part.compressed->rank * part.compressed->size.columns;
      } else {
        plan.sent.count += part.count;
      }
      plan.parts.push_back(part);
    }
    count += plan.sent.count + plan.q.count;
  }
  memory_ = {};  // of another model, if there was one
  memory_ = group.allocate(count * sizeof(float), options);
  auto* next = static_cast<float*>(memory_.data());
  for (Plan& plan : plans_) {
    plan.sent = {next, plan.sent.count, DataType::float32};
    for (Part& part : plan.parts) {
      part.sent = next;
      next += part.compressed == nullptr ? part.count : part.compressed->rank * part.compressed->size.rows;
    }
    plan.q = {next, plan.q.count, DataType::float32};
    for (Part& part : plan.parts) {
      part.q = next;
      if (part.compressed != nullptr) next += part.compressed->rank * part.compressed->size.columns;
    }
  }
}

// Null where it would not send enough less.
Compressed* PowerSgd::compress(const Parameter& parameter) {
  const std::size_t count = parameter.values.count;
  if (parameter.shape.size() < 2 || count == 0) return nullptr;
  const MatrixSize size{static_cast<std::size_t>(parameter.shape[0]),
                        count / static_cast<std::size_t>(parameter.shape[0])};
  const std::size_t rank = std::min({size.rows, size.columns, static_cast<std::size_t>(options_.rank)});
  const auto sent = static_cast<double>((size.rows + size.columns) * rank);
  if (sent * options_.compression_rate_min >= static_cast<double>(count)) return nullptr;
  Compressed& its = compressed_[parameter.name];
  if (its.rank > 0) {  // of an earlier layout of the buckets
    if (its.size == size) return &its;
    refuse_power_sgd("parameter " + parameter.name + " has another shape than in the model before",
                     "a hook of its own for each model");
  }
  its.name = parameter.name;
  its.size = size;
  its.rank = rank;
  if (options_.error_feedback) its.error.resize(count);
  its.q.resize(rank * size.columns);
  return &its;
}

// Standard normal, without a warm start all of q, else the columns that are of no use: at first all, and later those of
// a gradient that was zero or not finite. The same on all ranks, and independent of the buckets.
void PowerSgd::draw(Compressed& its) const {
  for (std::size_t k = 0; k < its.rank; ++k) {
    const auto column = its.q.begin() + static_cast<std::ptrdiff_t>(k * its.size.columns);
    const auto end = column + static_cast<std::ptrdiff_t>(its.size.columns);
    const double squares = tensor::sum_of_squares({&*column, its.size.columns, DataType::float32});
    if (options_.warm_start && squares > 0 && std::isfinite(squares)) continue;
    base::Fnv1a hash;
    hash.add(its.name);
    for (const std::uint64_t each : {options_.seed, static_cast<std::uint64_t>(steps_.number() + 1), std::uint64_t{k}})
      hash.add(each);
    std::mt19937_64 random(hash.value());
    const auto uniform = [&random] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    constexpr double kPi = 3.14159265358979323846;
    // Box and Muller's method. std::normal_distribution differs from library to library.
    std::generate(column, end, [&] {
      const double distance = std::sqrt(-2 * std::log(uniform()));
      return static_cast<float>(distance * std::cos(2 * kPi * uniform()));
    });
  }
}

std::optional<Work> PowerSgd::next(const HookCall& call) {
  Plan& plan = plans_[call.bucket.number];
  if (call.stage == 0) steps_.note(call.step);
  const bool is_exact = plan.q.count == 0 || static_cast<std::uint64_t>(steps_.number()) < options_.start_step;
  switch (call.stage) {
    case 0:
      if (is_exact) return average(call, call.bucket.gradients);
      send_first_factors(plan);
      return average(call, plan.sent);
    case 1:
      if (is_exact) return std::nullopt;
      send_second_factors(plan);
      return average(call, plan.q);
    default: multiply(plan); return std::nullopt;
  }
}

void PowerSgd::send_first_factors(Plan& plan) {
  for (Part& part : plan.parts) {
    if (part.compressed == nullptr) {
      std::copy_n(part.gradient, part.count, part.sent);
      continue;
    }
    Compressed& its = *part.compressed;
    if (options_.error_feedback) {
      for (std::size_t i = 0; i < part.count; ++i) part.gradient[i] += its.error[i];
      std::copy_n(part.gradient, part.count, its.error.data());
    }
    draw(its);
    gradient_engine::orthogonalize(its.q.data(), its.size.columns, its.rank, options_.epsilon);
    gradient_engine::multiply(part.gradient, its.size, its.q.data(), its.rank, part.sent);
  }
}

void PowerSgd::send_second_factors(Plan& plan) {
  for (Part& part : plan.parts) {
    if (part.compressed == nullptr) {
      std::copy_n(part.sent, part.count, part.gradient);
      continue;
    }
    const Compressed& its = *part.compressed;
    gradient_engine::orthogonalize(part.sent, its.size.rows, its.rank, options_.epsilon);
    gradient_engine::multiply_transposed(part.gradient, its.size, part.sent, its.rank, part.q);
  }
}

void PowerSgd::multiply(Plan& plan) {
  for (Part& part : plan.parts) {
    if (part.compressed == nullptr) continue;
    Compressed& its = *part.compressed;
    gradient_engine::multiply_factors(part.sent, part.q, its.rank, its.size, part.gradient);
    for (std::size_t i = 0; i < its.error.size(); ++i) its.error[i] -= part.gradient[i];
    if (!tensor::is_finite(its.error)) std::fill(its.error.begin(), its.error.end(), 0.0F);
    its.q.assign(part.q, part.q + its.q.size());
  }
}

std::vector<Parameter> PowerSgd::state() {
  std::vector<Parameter> state{{"power_sgd.step", {}, steps_.memory()}};
  for (auto& [name, its] : compressed_) {
    const std::string prefix = "power_sgd." + name;
    if (options_.error_feedback) {
      state.push_back({prefix + ".error",
                       {static_cast<std::int64_t>(its.size.rows), static_cast<std::int64_t>(its.size.columns)},
                       its.error});
    }
    state.push_back(
        {prefix + ".q", {static_cast<std::int64_t>(its.rank), static_cast<std::int64_t>(its.size.columns)}, its.q});
  }
  return state;
}

}  // namespace

std::shared_ptr<CommunicationHook> DDP_ABI::power_sgd(PowerSgdOptions options) {
  if (options.rank < 1) refuse_power_sgd("an approximation of rank " + std::to_string(options.rank), "rank = 1");
  if (!(options.compression_rate_min > 0)) {
    refuse_power_sgd("compression_rate_min = " + std::to_string(options.compression_rate_min), "a number above 0");
  }
  if (!(options.epsilon >= 0))
    refuse_power_sgd("epsilon = " + std::to_string(options.epsilon), "0, or a small number above it");
  return std::make_shared<PowerSgd>(options);
}

}  // namespace ddp
