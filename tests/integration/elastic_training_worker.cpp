// A worker that trains a small linear model inside run_elastic, with all of its state in a Checkpointer.
//
//   elastic_training_worker FOLDER METHOD STORE STEPS
//
// METHOD: power_sgd or top_k (a hook that has state of its own on each rank), zero1 or zero2 (a ShardedOptimizer, with
//         Sharding::optimizer or Sharding::gradients), local_sgd or diloco (parameters of each rank's own, which are
//         averaged now and then), loss_scaler (a LossScaler, and now and then a gradient that is infinite). With
//         "_rebuilt" behind its name: with RebuildBuckets::automatic, after which the buckets are others
// STORE:  memory (a CheckpointMemory), or disk (FOLDER/checkpoints)
//
// A generator of each rank draws which inputs of a sample count. It saves after each step, and writes lines to two
// files of FOLDER:
//   samples   "ROUND_ID STEP SAMPLE ...": of each rank and step; the number of a sample counts over all epochs
//   commits   "ROUND STEP": the checkpoint of this step is complete
//   states    "ROUND STEP DIGEST": of each rank, what it has saved. The sum over ranks does not depend on their number
// It prints a line when it begins a round, when it leaves one by an error, and when it ends. Other files of FOLDER say
// what it does:
//   PLACE_STEP_RANK   the process that finds it removes it and dies, at that place of the step:
//                     step (the others wait in finish()), saving (in save()), saved (save() has returned),
//                     committed (the checkpoint is complete)
//   loading_RANK      as above, in load()
//   keeping_RANK      as above, in load(), when what was loaded is copied to the memory of this round
//   hold_STEP         rank 0 begins this step when the file is gone
#include <ddp/checkpointer.hpp>
#include <ddp/distributed_data_parallel.hpp>
#include <ddp/distributed_sampler.hpp>
#include <ddp/elastic.hpp>
#include <ddp/gradient_compression.hpp>
#include <ddp/gradient_scaling.hpp>
#include <ddp/local_sgd.hpp>
#include <ddp/parameter_check.hpp>
#include <ddp/sampler_cursor.hpp>
#include <ddp/sharded_optimizer.hpp>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/elastic_worker.hpp"

namespace {

using ddp::elastic_test::exists;
using ddp::elastic_test::print;

constexpr std::size_t kInputs = 12, kOutputs = 16, kSamples = 96, kBatch = 4;
constexpr std::uint64_t kLocalFrom = 2, kAveragePeriod = 3, kOuterPeriod = 5;  // parameters are the same after step 30
constexpr std::uint64_t kInfiniteEvery = 7;                                    // steps, on rank 0

// The same number in [-1, 1) on every rank.
float noise(std::uint64_t of) {
  of = (of + 1) * 0x9E3779B97F4A7C15u;
  of ^= of >> 29;
  of *= 0xBF58476D1CE4E5B9u;
  return static_cast<float>(of >> 40) / static_cast<float>(1u << 23) - 1.0f;
}

struct Settings {
  std::string folder, method, store;
  std::uint64_t steps = 0;
  bool rebuilds_buckets = false;
};

Settings settings_of(char** argv) {
  Settings settings{argv[1], argv[2], argv[3], std::strtoull(argv[4], nullptr, 10)};
  const auto suffix = settings.method.find("_rebuilt");
  settings.rebuilds_buckets = suffix != std::string::npos;
  if (settings.rebuilds_buckets) settings.method.resize(suffix);
  return settings;
}

void append(const std::string& path, const std::string& line) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  static_cast<void>(!::write(file, line.data(), line.size()));
  ::close(file);
}

class Training {
 public:
  Training(ddp::ProcessGroup world, const Settings& settings, ddp::CheckpointMemory& memory)
      : world_(world),
        settings_(settings),
        cursor_(ddp::DistributedSampler({kSamples, world.size(), world.rank()}), kBatch, ddp::LastBatch::keep),
        random_(static_cast<unsigned>(world.rank())),
        checkpoints_(world, checkpointer_options(memory)) {
    for (std::size_t i = 0; i < matrix_.size(); ++i) matrix_[i] = 0.1f * noise(i);
    ddp::DistributedDataParallelOptions options;
    if (settings.rebuilds_buckets) {
      options.rebuild_buckets = ddp::RebuildBuckets::automatic;
      // At first both gradients share a bucket. The matrix is ready first, and so fills a bucket after the rebuild.
      options.first_bucket_cap_bytes = options.bucket_cap_bytes = (kOutputs + 1) * sizeof(float);
    }
    if (settings.method == "zero1" || settings.method == "zero2") {
      const auto sharding = settings.method == "zero1" ? ddp::Sharding::optimizer : ddp::Sharding::gradients;
      optimizer_.emplace(world, parameters(), ddp::AdamWOptions{.learning_rate = 0.02}, sharding);
      optimizer_->prepare(options);
      checkpoints_.add(*optimizer_);
    } else if (settings.method == "loss_scaler") {
      // No power of two: gradients have other bits with another scale.
      scaler_.emplace(world, ddp::LossScalerOptions{.scale = 3, .growth = 1.7, .backoff = 0.3, .growth_interval = 4});
      checkpoints_.add(scaler_->state());
      checkpoints_.add(momentum_state());
    } else if (is_local()) {
      hook_ = ddp::post_local_sgd({.start_step = settings.method == "diloco" ? 0 : kLocalFrom});
      options.communication_hook = hook_;
      checkpoints_.add(hook_->state());
      checkpoints_.add_own([this] {
        std::vector<ddp::Parameter> own = parameters();
        own.push_back(momentum_state());
        return own;
      });
    } else {
      hook_ = settings.method == "top_k" ? ddp::top_k({.ratio = 0.25}) : ddp::power_sgd({.rank = 2, .start_step = 3});
      options.communication_hook = hook_;
      checkpoints_.add(momentum_state());
      checkpoints_.add_own([this] { return hook_->state(); });
    }
    model_.emplace(world, parameters(), options);
    if (settings.rebuilds_buckets) checkpoints_.add(*model_);
    if (settings.method == "local_sgd") {
      average_.emplace(std::vector<ddp::AverageLevel>{{world, kAveragePeriod}}, parameters(),
                       ddp::ParameterAverageOptions{.start_step = kLocalFrom});
      note_same();
    }
    if (settings.method == "diloco") {
      diloco_.emplace(world, parameters(), ddp::DiLoCoOptions{.period = kOuterPeriod, .outer_momentum = 0.5});
    }
    checkpoints_.add(is_local() ? state_of_averages() : parameters());
    checkpoints_.add("step", step_);
    checkpoints_.add("sampler", cursor_);
    checkpoints_.add_own("random", random_);
    checkpoints_.add_own_text("none", {[this] {
                                         is_loading_ ? die("keeping_" + own_rank()) : die_at("saving");
                                         return std::string();
                                       },
                                       [this](const std::string&) { die("loading_" + own_rank()); }});
  }

  void run() {
    is_loading_ = true;
    const auto loaded = checkpoints_.load();
    is_loading_ = false;
    if (is_local() && loaded && !loaded->has_own_state) take_last_average();
    print("begin round=" + std::to_string(world_.round().number) + " rank=" + std::to_string(world_.rank()) +
          " pid=" + std::to_string(::getpid()) + " size=" + std::to_string(world_.size()) +
          " step=" + std::to_string(step_) + " memory=" + std::to_string(loaded ? loaded->is_from_memory : 0) +
          " own=" + std::to_string(loaded ? loaded->has_own_state : 0) + " loss=" + std::to_string(loss()) +
          " state=" + std::to_string(digest()) + " ;");
    while (step_ < settings_.steps) train_one_step();
    checkpoints_.wait();
    commit(step_);
    if (optimizer_) optimizer_->wait();
    ddp::check_parameters_equal(world_, parameters());
    print("end rank=" + std::to_string(world_.rank()) + " step=" + std::to_string(step_) + " bits=" + bits() +
          " loss=" + std::to_string(loss()) + " ;");
  }

 private:
  ddp::CheckpointerOptions checkpointer_options(ddp::CheckpointMemory& memory) const {
    ddp::CheckpointerOptions options;
    if (settings_.store == "memory") options.memory = &memory;
    if (settings_.store == "disk") options.directory = settings_.folder + "/checkpoints";
    return options;
  }

  std::vector<ddp::Parameter> parameters() {
    return {{"matrix", {kOutputs, kInputs}, matrix_}, {"bias", {kOutputs}, bias_}};
  }

  ddp::Parameter momentum_state() { return {"momentum", {kOutputs * (kInputs + 1)}, momentum_}; }

  bool is_local() const { return settings_.method == "local_sgd" || settings_.method == "diloco"; }

  // What averages have beside the parameters of each rank: the same on all ranks, so it serves any number of them.
  std::vector<ddp::Parameter> state_of_averages() {
    if (diloco_) return diloco_->state();
    std::vector<ddp::Parameter> state = average_->state();
    state.push_back({"same.matrix", {kOutputs, kInputs}, same_matrix_});
    state.push_back({"same.bias", {kOutputs}, same_bias_});
    return state;
  }

  // The parameters are the same on all ranks.
  void note_same() {
    same_matrix_ = matrix_;
    same_bias_ = bias_;
  }

  // With another number of ranks, every rank goes on from the parameters that were the same on all ranks last.
  void take_last_average() {
    for (const ddp::Parameter& each : state_of_averages()) {
      const auto* const from = static_cast<const float*>(each.values.data);
      if (each.name == "same.matrix" || each.name == "diloco.matrix.last")
        std::copy_n(from, matrix_.size(), &matrix_[0]);
      if (each.name == "same.bias" || each.name == "diloco.bias.last") std::copy_n(from, bias_.size(), &bias_[0]);
    }
  }

  void update() {
    if (optimizer_) return optimizer_->step();
    if (scaler_ && !scaler_->unscale(*model_)) return;
    descend();
    if (diloco_) diloco_->step();
    if (average_ && (average_->step() || step_ < kLocalFrom)) note_same();
  }

  void train_one_step() {
    hold();
    std::vector<std::int64_t> batch = cursor_.next_batch();
    if (batch.empty()) {
      cursor_.next_epoch();
      batch = cursor_.next_batch();
    }
    if (optimizer_) optimizer_->wait();
    auto step = model_->begin_step();
    add_gradients(batch);
    step.ready(settings_.rebuilds_buckets ? 0 : 1);
    die_at("step");
    step.ready(settings_.rebuilds_buckets ? 1 : 0);
    step.finish();
    update();
    ++step_;
    log(batch);
    append(settings_.folder + "/states",
           std::to_string(world_.round().number) + " " + std::to_string(step_) + " " + std::to_string(digest()) + "\n");
    checkpoints_.save(step_);
    die_at("saved");
    commit(step_ - 1);  // save() has waited for it
    if (is_there("committed")) {
      checkpoints_.wait();
      commit(step_);
      die_at("committed");
    }
  }

  void add_gradients(const std::vector<std::int64_t>& batch) {
    auto* const of_matrix = model_->gradient<float>(0).data();
    auto* const of_bias = model_->gradient<float>(1).data();
    for (const std::int64_t sample : batch) {
      const Errors errors = errors_of(sample);
      const std::uint32_t kept = random_();  // a bit for each input
      for (std::size_t o = 0; o < kOutputs; ++o) {
        of_bias[o] += errors[o] / static_cast<float>(batch.size());
        for (std::size_t i = 0; i < kInputs; ++i) {
          if ((kept >> i & 1) == 0) continue;
          of_matrix[o * kInputs + i] += errors[o] * input(sample, i) / static_cast<float>(batch.size());
        }
      }
    }
    if (!scaler_) return;
    for (std::size_t p = 0; p < 2; ++p) {
      for (float& each : model_->gradient<float>(p)) each *= static_cast<float>(scaler_->scale());
    }
    const bool is_infinite = world_.rank() == 0 && step_ % kInfiniteEvery == kInfiniteEvery - 1;
    if (is_infinite) of_bias[0] = std::numeric_limits<float>::infinity();
  }

  void descend() {
    std::size_t at = 0;
    for (const ddp::Parameter& parameter : parameters()) {
      const auto* const gradient = static_cast<const float*>(model_->gradient(at == 0 ? 0 : 1).data);
      for (std::size_t i = 0; i < parameter.values.count; ++i) {
        momentum_[at + i] = 0.8f * momentum_[at + i] + gradient[i];
        static_cast<float*>(parameter.values.data)[i] -= 0.05f * momentum_[at + i];
      }
      at += parameter.values.count;
    }
  }

  // What the model says of a sample, less what it is to say.
  using Errors = std::array<float, kOutputs>;
  Errors errors_of(std::int64_t sample) const {
    Errors errors{};
    for (std::size_t o = 0; o < kOutputs; ++o) {
      errors[o] = bias_[o] - noise(5000 + o);
      for (std::size_t i = 0; i < kInputs; ++i) {
        errors[o] += (matrix_[o * kInputs + i] - noise(9000 + o * kInputs + i)) * input(sample, i);
      }
    }
    return errors;
  }

  static float input(std::int64_t sample, std::size_t i) {
    return noise(100'000 + static_cast<std::uint64_t>(sample) * kInputs + i);
  }

  // Of all samples. The parameters of a ShardedOptimizer may be on their way.
  double loss() {
    if (optimizer_) optimizer_->wait();
    double squares = 0;
    for (std::size_t sample = 0; sample < kSamples; ++sample) {
      for (const float error : errors_of(static_cast<std::int64_t>(sample))) squares += double{error} * error;
    }
    return squares / kSamples;
  }

  std::string bits() {
    std::uint64_t hash = 0;
    for (const ddp::Parameter& parameter : parameters()) {
      for (std::size_t i = 0; i < parameter.values.count; ++i) {
        std::uint32_t word = 0;
        std::memcpy(&word, static_cast<const float*>(parameter.values.data) + i, sizeof word);
        hash = hash * 0x100000001B3u + word;
      }
    }
    return std::to_string(hash);
  }

  // Of this rank's part of the optimizer's state; on rank 0 also of what all ranks have alike. Small enough for a sum.
  std::uint64_t digest() {
    if (optimizer_) optimizer_->wait();
    std::uint64_t sum = 0;
    const auto add = [&](const std::string& name, std::size_t first, const ddp::MemoryRange& values) {
      for (std::size_t i = 0; i < values.count; ++i) {
        const std::size_t bytes = ddp::size_of(values.type);
        std::uint64_t word = 0;
        std::memcpy(&word, static_cast<const std::byte*>(values.data) + i * bytes, bytes);
        const std::string element = name + " " + std::to_string(first + i) + " " + std::to_string(word);
        sum += std::hash<std::string>()(element) >> 32;
      }
    };
    if (optimizer_) {
      for (const auto& shard : optimizer_->shards()) add(shard.name, shard.first, shard.values);
    }
    if (world_.rank() != 0) return sum;
    if (is_local()) {  // the parameters and the momentum are of each rank, and only of so many ranks
      for (const auto& state : {state_of_averages(), hook_->state()}) {
        for (const ddp::Parameter& each : state) add(each.name, 0, each.values);
      }
      return sum;
    }
    for (const ddp::Parameter& parameter : parameters()) add(parameter.name, 0, parameter.values);
    add("momentum", 0, momentum_);
    if (!scaler_) return sum;
    for (const ddp::Parameter& each : scaler_->state()) add(each.name, 0, each.values);
    return sum;
  }

  void log(const std::vector<std::int64_t>& batch) const {
    std::string line = to_string(world_.round()) + " " + std::to_string(step_);
    const auto before = static_cast<std::int64_t>(cursor_.state().epoch * kSamples);
    for (const std::int64_t sample : batch) line += " " + std::to_string(before + sample);
    append(settings_.folder + "/samples", line + "\n");
  }

  void commit(std::uint64_t step) const {
    append(settings_.folder + "/commits", std::to_string(world_.round().number) + " " + std::to_string(step) + "\n");
  }

  std::string file_of(const std::string& place) const {
    return settings_.folder + "/" + place + "_" + std::to_string(step_) + "_" + std::to_string(world_.rank());
  }
  bool is_there(const std::string& place) const { return exists(file_of(place)); }
  void die_at(const std::string& place) const { die(place + "_" + std::to_string(step_) + "_" + own_rank()); }
  void die(const std::string& file) const {
    if (::unlink((settings_.folder + "/" + file).c_str()) == 0) ::raise(SIGKILL);
  }
  std::string own_rank() const { return std::to_string(world_.rank()); }

  void hold() const {
    const std::string file = settings_.folder + "/hold_" + std::to_string(step_);
    if (world_.rank() != 0 || !exists(file)) return;
    ddp::elastic_test::wait_while_exists(settings_.folder, file, "holds ;");
  }

  ddp::ProcessGroup world_;
  const Settings& settings_;
  std::vector<float> matrix_ = std::vector<float>(kOutputs * kInputs), bias_ = std::vector<float>(kOutputs);
  std::vector<float> momentum_ = std::vector<float>(kOutputs * (kInputs + 1));
  std::vector<float> same_matrix_ = matrix_, same_bias_ = bias_;  // of local_sgd: when last the same on all ranks
  std::uint64_t step_ = 0;
  bool is_loading_ = false;
  std::shared_ptr<ddp::CommunicationHook> hook_;
  std::optional<ddp::ShardedOptimizer> optimizer_;
  std::optional<ddp::LossScaler> scaler_;
  std::optional<ddp::ParameterAverage> average_;
  std::optional<ddp::DiLoCo> diloco_;
  std::optional<ddp::DistributedDataParallel> model_;
  ddp::SamplerCursor<ddp::DistributedSampler> cursor_;
  std::mt19937 random_;
  ddp::Checkpointer checkpoints_;
};

}  // namespace

int main(int, char** argv) {
  const Settings settings = settings_of(argv);
  ddp::CheckpointMemory memory;
  ddp::ElasticState nothing;
  try {
    ddp::run_elastic(nothing, [&](ddp::ProcessGroup world) {
      try {
        Training(world, settings, memory).run();
      } catch (const ddp::Error&) {
        print("leaves round=" + std::to_string(world.round().number) + " ;");
        throw;
      }
    });
    return 0;
  } catch (const std::exception& error) {
    print("error " + std::string(error.what()));
    return 3;
  }
}
