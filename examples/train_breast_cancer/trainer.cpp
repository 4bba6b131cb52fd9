#include "trainer.hpp"

#include "agreed.hpp"
#include "input_error.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace train {
namespace {

constexpr std::size_t kHiddenWidth1 = 32;
constexpr std::size_t kHiddenWidth2 = 16;
constexpr std::size_t kKeep = 2;  // checkpoints of this run

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t count_checkpoints(const std::filesystem::path& directory) {
  std::size_t count = 0;
  std::error_code ignored;  // what can't be listed can't be written to either, which saving says
  for (std::filesystem::directory_iterator next(directory, ignored), end; !ignored && next != end;) {
    if (next->path().extension() == ".safetensors") ++count;
    next.increment(ignored);
  }
  return count;
}

template <class... Values>
std::string format(const char* form, Values... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), form, values...);
  return text.data();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Trainer::Trainer(ddp::ProcessGroup world, const Options& options)
    : world_(std::move(world)),
      options_(options),
      display_(world_.rank(), {.lines = false}),
      checkpoints_(options.checkpoint_directory, kKeep) {
  run_agreed(world_, [this] { load_data(); });
  optimizer_.emplace(mlp_->parameters(), SgdOptions{.learning_rate = options_.learning_rate});
  run_agreed(world_, [this] { resume(); });

  model_.emplace(world_, mlp_->parameters());  // from here on every rank has rank 0's parameters
  for (std::size_t p = 0; p < model_->parameter_count(); ++p) {
    gradients_.push_back(model_->gradient<float>(p).data());
  }
  broadcast_state(world_, *optimizer_, position_);
  last_checkpoint_step_ = options_.resume ? position_.step : -1;
  align_position();
}

void Trainer::load_data() {
  const Dataset dataset = read_csv(options_.data);
  data_ = split_and_standardise(dataset.samples);
  if (batches_per_epoch() == 0) {
    throw InputError("the training part has " + std::to_string(data_.train.size()) +
                     " samples, too few for one step of " + std::to_string(samples_per_step()) + " (" +
                     std::to_string(world_.size()) + " workers, " + std::to_string(options_.batch_size) +
                     " samples each)\nwhere: " + options_.data.string() +
                     "\ntry:   a smaller --batch-size, or fewer workers");
  }
  mlp_.emplace(
      std::vector<std::size_t>{dataset.samples.feature_count, kHiddenWidth1, kHiddenWidth2, dataset.class_names.size()},
      options_.seed);
  sampler_.emplace(ddp::DistributedSamplerOptions{.sample_count = data_.train.size(),
                                                  .replicas = world_.size(),
                                                  .rank = world_.rank(),
                                                  .seed = options_.seed,
                                                  .drop_last = true});
}

void Trainer::resume() {
  if (world_.rank() != 0) return;
  if (!options_.resume) return keep_earlier_checkpoints();
  const auto file = checkpoints_.newest([this](const std::string& message) {
    display_.print_line("warning: passing over a checkpoint: " + first_line(message));
  });
  if (!file) {
    display_.print_line("no checkpoint in " + options_.checkpoint_directory.string() + " yet: starting afresh");
    return;
  }
  position_ = load_state(*file, mlp_->parameters(), *optimizer_, {.seed = options_.seed});
  last_checkpoint_ = file->path().string();
  display_.print_line("resumed after step " + std::to_string(position_.step) + " from " + last_checkpoint_);
}

// A forgotten --resume must not cost what an earlier run has learnt: this one's checkpoints are newer than all of its.
void Trainer::keep_earlier_checkpoints() {
  const std::size_t count = count_checkpoints(options_.checkpoint_directory);
  if (count == 0) return;
  checkpoints_ = ddp::CheckpointDirectory(options_.checkpoint_directory, std::numeric_limits<std::size_t>::max());
  prunes_own_checkpoints_ = true;
  display_.print_line("starting afresh beside " + std::to_string(count) +
                      (count == 1 ? " checkpoint of an earlier run in " : " checkpoints of earlier runs in ") +
                      options_.checkpoint_directory.string() + ", kept; --resume goes on from the newest");
}

// A run with another number of workers, or another batch size, may have stopped between two batches of this one: the
// batch it stopped in is then seen again from its start.
void Trainer::align_position() {
  const auto batch = position_.samples / samples_per_step();
  position_.samples = batch * samples_per_step();
  if (batch < batches_per_epoch()) return;
  ++position_.epoch;
  position_.samples = 0;
}

std::int64_t Trainer::samples_per_step() const {
  return static_cast<std::int64_t>(options_.batch_size) * world_.size();
}

std::int64_t Trainer::batches_per_epoch() const {
  return static_cast<std::int64_t>(data_.train.size()) / samples_per_step();
}

double Trainer::step() {
  if (batches_.empty()) {
    batches_ =
        sampler_->batches(static_cast<std::uint64_t>(position_.epoch), options_.batch_size, ddp::LastBatch::drop);
  }
  const auto batch = static_cast<std::size_t>(position_.samples / samples_per_step());
  const Samples samples = select(data_.train, batches_[batch]);

  auto step = model_->begin_step();
  const double loss = mlp_->forward(samples);
  mlp_->backward(gradients_, [&](std::size_t parameter) { step.ready(parameter); });
  step.finish();
  optimizer_->step(gradients_);

  ++position_.step;
  position_.samples += samples_per_step();
  if (batch + 1 == batches_.size()) {
    ++position_.epoch;
    position_.samples = 0;
    batches_.clear();
  }
  return loss;
}

void Trainer::run() {
  describe_work();
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first_step = position_.step;
  const auto samples_per_second = [&] {
    return static_cast<double>((position_.step - first_step) * samples_per_step()) / seconds_since(start);
  };
  const std::int64_t batches = batches_per_epoch();
  std::int64_t batch = position_.samples / samples_per_step();
  display_.begin(options_.epochs * static_cast<std::uint64_t>(batches),
                 static_cast<std::uint64_t>(position_.epoch * batches + batch));
  for (; !is_done(); batch = 0) {
    const std::string epoch = epoch_text();
    display_.set_label(epoch);
    std::vector<double> loss = {0};  // mean over the batches so far; at the end of the epoch over all ranks too
    for (double count = 1; batch < batches; ++count) {
      if (world_.should_stop()) return stop();
      loss[0] += (step() - loss[0]) / count;
      if (is_checkpoint_due()) save();
      if (++batch == batches) world_.all_reduce(loss, ddp::ReduceOp::average);
      display_.step(static_cast<std::uint64_t>(samples_per_step()), loss[0]);
    }
    if (!display_.is_on_terminal()) {
      display_.print_line(epoch + format("  loss %.4f  %.0f samples/s", loss[0], samples_per_second()));
    }
  }
  report_end(samples_per_second());
}

std::string Trainer::epoch_text() const {
  const std::string epochs = std::to_string(options_.epochs);
  return format("epoch %*lld/%s", static_cast<int>(epochs.size()), static_cast<long long>(position_.epoch + 1),
                epochs.c_str());
}

void Trainer::describe_work() {
  const std::int64_t seen = batches_per_epoch() * samples_per_step();
  display_.print_line(std::to_string(world_.size()) + (world_.size() == 1 ? " worker, batch " : " workers, batch ") +
                      std::to_string(options_.batch_size) + " per worker: " + std::to_string(batches_per_epoch()) +
                      " batches per rank and epoch, " + std::to_string(seen) + " samples seen, " +
                      std::to_string(static_cast<std::int64_t>(data_.train.size()) - seen) + " dropped");
}

bool Trainer::is_checkpoint_due() const {
  return options_.checkpoint_every > 0 && static_cast<std::uint64_t>(position_.step) % options_.checkpoint_every == 0;
}

void Trainer::save() {
  if (world_.rank() != 0 || position_.step == last_checkpoint_step_) return;
  last_checkpoint_ =
      save_state(checkpoints_, world_.round(), mlp_->parameters(), *optimizer_, position_, {.seed = options_.seed})
          .string();
  last_checkpoint_step_ = position_.step;
  if (!prunes_own_checkpoints_) return;
  own_checkpoints_.push_back(last_checkpoint_);
  if (own_checkpoints_.size() <= kKeep) return;
  std::error_code ignored;  // one too many does no harm
  std::filesystem::remove(own_checkpoints_.front(), ignored);
  own_checkpoints_.pop_front();
}

// The same step on all ranks; --resume goes on there.
void Trainer::stop() {
  save();
  display_.finish();
  display_.print_line("stopped after step " + std::to_string(position_.step) + "; checkpoint: " + last_checkpoint_);
  world_.barrier();  // no rank ends before rank 0 has saved
}

void Trainer::report_end(double samples_per_second) {
  save();
  display_.print_line(format("test accuracy %.2f %% on %zu samples; %.0f samples/s in training",
                             100 * mlp_->accuracy(data_.test), data_.test.size(), samples_per_second));
  display_.print_line("checkpoint: " + last_checkpoint_);
  world_.barrier();  // no rank ends before rank 0 has saved
}

}  // namespace train
