#include "options.hpp"

#include "input_error.hpp"

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

namespace train {
namespace {

constexpr std::size_t kBatchSizeMax = 1'000'000;

[[noreturn]] void refuse(const std::string& what) {
  throw InputError(what + "\nwhere: the command line of train_breast_cancer\ntry:   train_breast_cancer --help");
}

// Asked of the environment, because help needs no group.
bool is_first_rank() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr || std::string(rank) == "0";
}

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

void check(const Options& options) {
  if (options.batch_size < 1 || options.batch_size > kBatchSizeMax) {
    refuse("--batch-size is " + std::to_string(options.batch_size) + ", not 1 to " + std::to_string(kBatchSizeMax));
  }
  if (options.epochs < 1) refuse("--epochs is 0, not 1 or more");
  if (!std::isfinite(options.learning_rate) || options.learning_rate <= 0) {
    refuse("--learning-rate is " + std::to_string(options.learning_rate) + ", not a number above 0");
  }
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
