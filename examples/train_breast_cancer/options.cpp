#include "options.hpp"

#include "command_line.hpp"

namespace train {
namespace {

void declare(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "CSV file to train on (examples/data/README.md describes it)")
      ->capture_default_str()
      ->required(options.data.empty());
  app.add_option("--batch-size", options.batch_size, "Samples per worker and step")->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training part of the data")->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Of SGD with momentum")->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the samples")->capture_default_str();
  app.add_option("--checkpoint-dir", options.checkpoint_directory,
                 "Folder of the checkpoints, made where missing; the newest two are kept")
      ->capture_default_str();
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps from one to the next; 0: at the end only")
      ->capture_default_str();
  app.add_flag(
      "--resume", options.resume,
      "Go on from the newest checkpoint, if there is one; without this flag, a run starts afresh and leaves those of "
      "earlier runs where they are");
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
#ifdef TRAIN_BREAST_CANCER_DATA
  options.data = TRAIN_BREAST_CANCER_DATA;
#endif
  CLI::App app(
      "Trains a small neural network to tell malignant from benign tumours, on any number of workers.\n"
      "Run it alone, or under a launcher: ddprun --standalone --nproc-per-node=4 train_breast_cancer",
      "train_breast_cancer");
  declare(app, options);
  if (!parse(app, argc, argv)) return std::nullopt;
  check_training(app, options);
  return options;
}

}  // namespace train
