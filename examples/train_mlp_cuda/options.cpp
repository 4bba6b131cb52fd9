#include "options.hpp"

#include "command_line.hpp"

namespace train {

namespace {

constexpr std::size_t kWidthMax = 65'536;

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

void check(const CLI::App& app, const CudaOptions& options) {
  require_range(app, "--width", options.width, kWidthMax);
  require_range(app, "--layers", options.layers, kLayersMax);
  check_training(app, options);
  if (!options.is_synthetic && options.data.empty()) refuse(app, "neither --data nor --synthetic is given");
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
  if (!parse(app, argc, argv)) return std::nullopt;
  check(app, options);
  return options;
}

}  // namespace train
