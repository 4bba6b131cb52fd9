// The command line of train_breast_cancer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace train {

struct Options {
  std::filesystem::path data;
  std::size_t batch_size = 8;  // per worker
  std::uint64_t epochs = 30;
  double learning_rate = 0.02;
  std::uint64_t seed = 0;  // of the first weights and of the order of the samples
  std::filesystem::path checkpoint_directory = "checkpoints";
  std::uint64_t checkpoint_every = 100;  // steps; 0 saves at the end only
  bool resume = false;
};

// Empty where only help was asked for, which is then printed (by rank 0, if the process has a rank). Throws InputError.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace train
