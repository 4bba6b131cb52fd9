// The command line of train_transformer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace transformer {

struct Options {
  std::filesystem::path data;
  std::uint64_t steps = 300;
  std::size_t batch_size = 8;  // samples for each rank and step
  std::size_t layers = 2;
  std::size_t width = 64;    // a multiple of kHeadWidth
  std::size_t context = 64;  // characters of a sample
  double learning_rate = 0.003;
  std::uint64_t seed = 0;             // of the first parameters and of the order of the samples
  std::filesystem::path loss_curve;   // empty: none is written
  std::filesystem::path baseline;     // samples per second of one rank; empty: not compared
  std::filesystem::path checkpoints;  // folder; empty: none are written

  // How ranks combine what they learn. At most one of these four; without any, gradients are averaged as they are.
  bool zero2 = false;
  bool bf16 = false;
  int powersgd_rank = 0;               // 0: off
  std::uint64_t local_sgd_period = 0;  // in steps; 0: off

  bool elastic = false;
};

// How the ranks combine what they learn: "plain", "ZeRO-2", "PowerSGD of rank 4", ...
std::string method_of(const Options& options);

constexpr std::size_t kHeadWidth = 16;  // of each attention head

// Empty if only help was asked for, which is then printed (by rank 0, if the process has a rank). Throws
// train::InputError.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace transformer
