// One worker's training run: its share of the samples, the model, the optimizer, and the steps between checkpoints.
#pragma once

#include <ddp/ddp.hpp>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "data.hpp"
#include "mlp.hpp"
#include "options.hpp"
#include "training_state.hpp"

namespace train {

class Trainer {
 public:
  // Collective. Reads the data and, with --resume, the newest checkpoint. Throws InputError, ToldElsewhere and what
  // libddp throws.
  Trainer(ddp::ProcessGroup world, const Options& options);

  // Collective. Trains to the end, saves, and tells how well it went; or to where the job is told to stop, and saves.
  void run();

  // The parts of run(), for a program that does something of its own between steps.
  bool is_done() const { return static_cast<std::uint64_t>(position_.epoch) >= options_.epochs; }
  double step();  // collective; returns this rank's mean loss
  std::vector<ddp::Parameter> parameters() { return mlp_->parameters(); }
  const Position& position() const { return position_; }

 private:
  void load_data();
  void resume();
  void keep_earlier_checkpoints();
  void describe_work();
  std::string epoch_text() const;  // "epoch  3/30", of the one under way
  void align_position();
  std::int64_t samples_per_step() const;   // of all workers
  std::int64_t batches_per_epoch() const;  // of each worker
  bool is_checkpoint_due() const;
  void save();
  void stop();
  void report_end(double samples_per_second);

  ddp::ProcessGroup world_;
  Options options_;
  ddp::Progress display_;  // lines of epochs are the trainer's own
  ddp::CheckpointDirectory checkpoints_;

  Split data_;
  std::optional<Mlp> mlp_;
  std::optional<Sgd> optimizer_;
  std::optional<ddp::DistributedSampler> sampler_;
  std::optional<ddp::DistributedDataParallel> model_;
  std::vector<float*> gradients_;  // in the model's buckets, by parameter

  Position position_;
  std::vector<std::vector<std::int64_t>> batches_;  // this rank's, of the epoch under way
  std::string last_checkpoint_;                     // path; empty where there is none
  std::int64_t last_checkpoint_step_ = -1;
  bool prunes_own_checkpoints_ = false;      // where those of earlier runs must stay
  std::deque<std::string> own_checkpoints_;  // paths; the newest last
};

}  // namespace train
