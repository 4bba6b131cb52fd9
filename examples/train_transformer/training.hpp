// The training loop, and all that changes from step to step.
#pragma once

#include <ddp/elastic.hpp>
#include <ddp/process_group.hpp>
#include <ddp/sampling.hpp>

#include <cstdint>
#include <functional>
#include <vector>

#include "adamw.hpp"
#include "loss_curve.hpp"
#include "options.hpp"
#include "text.hpp"
#include "transformer.hpp"

namespace transformer {

constexpr std::uint64_t kReportEvery = 10;  // steps

// What a rank must have to go on where another one was.
struct TrainingState {
  TrainingState(const Options& options, const Text& text);

  void add_to(ddp::ElasticState& state);

  // The losses so far.
  std::vector<LossPoint> loss_points() const;

  Transformer model;
  AdamW optimizer;
  ddp::SamplerPosition position;
  std::uint64_t step = 0;
  std::vector<double> losses;  // of each kReportEvery steps, the mean over these and over ranks
};

struct Training {
  const Options& options;
  const Text& text;
  TrainingState& state;
  std::function<void()> commit;  // called where the state is the same on all ranks, and whole

  // Collective. Trains from where the state stands to the end; rank 0 prints how it goes. Throws train::InputError
  // if the text is too short for a step.
  void run(ddp::ProcessGroup& world);
};

}  // namespace transformer
