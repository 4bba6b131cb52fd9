// The training loop, and all that changes from step to step.
#pragma once

#include <ddp/checkpointer.hpp>
#include <ddp/process_group.hpp>

#include <cstdint>
#include <vector>

#include "adamw.hpp"
#include "loss_curve.hpp"
#include "options.hpp"
#include "text.hpp"
#include "transformer.hpp"

namespace transformer {

constexpr std::uint64_t kReportEvery = 10;  // steps
constexpr std::uint64_t kSaveEvery = 10;    // steps, or a few more: parameters must be the same on all ranks

// Beside these a checkpoint has the position of the sampler, and the state of the engine.
struct TrainingState {
  TrainingState(const Options& options, const Text& text);

  // The losses so far.
  std::vector<LossPoint> loss_points() const;

  Transformer model;
  AdamW optimizer;
  std::uint64_t step = 0;
  std::vector<double> losses;  // of each kReportEvery steps, the mean over these and over ranks
};

struct Training {
  const Options& options;
  const Text& text;
  TrainingState& state;
  ddp::CheckpointMemory* memory = nullptr;  // not null: checkpoints are kept there, too

  // Collective. Trains from the newest checkpoint, or else from where the state stands, to the end; rank 0 prints how
  // it goes. Throws train::InputError if the text is too short for a step.
  void run(ddp::ProcessGroup& world);
};

}  // namespace transformer
