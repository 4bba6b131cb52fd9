// The command line of train_mlp_cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace train {

constexpr std::size_t kLayersMax = 1'000;

struct CudaOptions {
  std::filesystem::path data;
  bool is_synthetic = false;
  std::size_t width = 32;      // of the hidden layers; with --synthetic of features too
  std::size_t layers = 2;      // linear ones
  std::size_t batch_size = 8;  // samples per worker and step
  std::uint64_t epochs = 20;
  float learning_rate = 0.01F;
  std::uint64_t seed = 0;
  bool use_tf32 = true;
  bool share_device = false;
  std::string trace;  // a file's path; empty: none
};

// Empty where only help was asked for, which is printed. Throws InputError.
std::optional<CudaOptions> parse_cuda_options(int argc, const char* const* argv);

}  // namespace train
