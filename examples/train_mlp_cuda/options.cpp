#include "options.hpp"

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

#include "input_error.hpp"

namespace train {

namespace {

constexpr std::size_t kWidthMax = 65'536, kBatchSizeMax = 1'000'000;

[[noreturn]] void refuse(const std::string& what) {
  throw InputError(what + "\nwhere: the command line of train_mlp_cuda\ntry:   train_mlp_cuda --help");
}

// Asked of the environment, because help needs no group.
bool is_first_rank() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr || std::string(rank) == "0";
}

void require_range(const char* option, std::size_t value, std::size_t max) {
  if (value < 1 || value > max) {
    refuse(std::string(option) + " is " + std::to_string(value) + ", not 1 to " + std::to_string(max));
  }
}

void declare(CLI::App& app, CudaOptions& options) {
  app.add_option("--data", options.data, "CSV file to train on (examples/data/README.md describes it)")
      ->capture_default_str();
  app.add_flag("--synthetic", options.is_synthetic,
               "Train on made-up samples instead, --width features and classes each");
  app.add_option("--width", options.width, "Of the hidden layers")->capture_default_str();
  app.add_option("--layers", options.layers, "Linear layers")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per worker and step")->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training part of the data")->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Of SGD with momentum")->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the samples")->capture_default_str();
  app.add_flag_callback(
      "--no-tf32", [&options] { options.use_tf32 = false; }, "Multiply in full float32 instead of TF32");
  app.add_flag("--share-device", options.share_device,
               "Let workers share a GPU; NCCL wants a different NCCL_HOSTID in the environment of each then");
  app.add_option("--trace", options.trace, "Write a timeline to this file, with the rank before its ending");
}

void check(const CudaOptions& options) {
  require_range("--width", options.width, kWidthMax);
  require_range("--layers", options.layers, kLayersMax);
  require_range("--batch-size", options.batch_size, kBatchSizeMax);
  if (options.epochs < 1) refuse("--epochs is 0, not 1 or more");
  if (!std::isfinite(options.learning_rate) || options.learning_rate <= 0) {
    refuse("--learning-rate is " + std::to_string(options.learning_rate) + ", not a number above 0");
  }
  if (!options.is_synthetic && options.data.empty()) refuse("neither --data nor --synthetic is given");
}

}  // namespace

std::optional<CudaOptions> parse_cuda_options(int argc, const char* const* argv) {
  CudaOptions options;
#ifdef TRAIN_MLP_CUDA_DATA
  options.data = TRAIN_MLP_CUDA_DATA;
#endif
  CLI::App app(
      "Trains a multi-layer perceptron on one GPU, or on one for each worker.\n"
      "Run it alone, or under a launcher: ddprun --standalone --nproc-per-node=gpu train_mlp_cuda",
      "train_mlp_cuda");
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (is_first_rank()) std::cout << app.help() << std::flush;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  check(options);
  return options;
}

}  // namespace train
