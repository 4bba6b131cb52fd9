// A worker that trains a small linear model inside run_elastic, with all of its state in a Checkpointer.
//
//   elastic_training_worker FOLDER METHOD STORE STEPS
//
// METHOD: power_sgd or top_k (a hook that has state of its own on each rank), zero1 or zero2 (a ShardedOptimizer, with
//         Sharding::optimizer or Sharding::gradients)
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
#include <ddp/parameter_check.hpp>
#include <ddp/sampler_cursor.hpp>
#include <ddp/sharded_optimizer.hpp>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
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
};

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
    if (settings.method == "zero1" || settings.method == "zero2") {
      const auto sharding = settings.method == "zero1" ? ddp::Sharding::optimizer : ddp::Sharding::gradients;
      optimizer_.emplace(world, parameters(), ddp::AdamWOptions{.learning_rate = 0.02}, sharding);
      optimizer_->prepare(options);
      checkpoints_.add(*optimizer_);
    } else {
      hook_ = settings.method == "top_k" ? ddp::top_k({.ratio = 0.25}) : ddp::power_sgd({.rank = 2, .start_step = 3});
      options.communication_hook = hook_;
      checkpoints_.add({"momentum", {kOutputs * (kInputs + 1)}, momentum_});
      checkpoints_.add_own([this] { return hook_->state(); });
    }
    model_.emplace(world, parameters(), options);
    checkpoints_.add(parameters());
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
    step.ready(1);
    die_at("step");
    step.ready(0);
    step.finish();
    optimizer_ ? optimizer_->step() : descend();
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
        std::uint32_t word = 0;
        std::memcpy(&word, static_cast<const float*>(values.data) + i, sizeof word);
        const std::string element = name + " " + std::to_string(first + i) + " " + std::to_string(word);
        sum += std::hash<std::string>()(element) >> 32;
      }
    };
    if (optimizer_) {
      for (const auto& shard : optimizer_->shards()) add(shard.name, shard.first, shard.values);
    }
    if (world_.rank() != 0) return sum;
    for (const ddp::Parameter& parameter : parameters()) add(parameter.name, 0, parameter.values);
    add("momentum", 0, momentum_);
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
  std::uint64_t step_ = 0;
  bool is_loading_ = false;
  std::shared_ptr<ddp::CommunicationHook> hook_;
  std::optional<ddp::ShardedOptimizer> optimizer_;
  std::optional<ddp::DistributedDataParallel> model_;
  ddp::SamplerCursor<ddp::DistributedSampler> cursor_;
  std::mt19937 random_;
  ddp::Checkpointer checkpoints_;
};

}  // namespace

int main(int, char** argv) {
  const Settings settings{argv[1], argv[2], argv[3], std::strtoull(argv[4], nullptr, 10)};
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
