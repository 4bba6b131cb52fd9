#include "options.hpp"

#include "command_line.hpp"

#include <vector>

namespace transformer {
namespace {

constexpr std::size_t kLayersMax = 64;
constexpr std::size_t kWidthMax = 4096;
constexpr std::size_t kContextMax = 4096;
constexpr std::size_t kPowerSgdRankMax = 64;
constexpr std::size_t kPeriodMax = 1'000'000;
constexpr std::size_t kStepsMax = 10'000'000;

void declare(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "Text file to learn")->capture_default_str()->required(options.data.empty());
  app.add_option("--steps", options.steps, "Steps of the optimizer")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per rank and step")->capture_default_str();
  app.add_option("--layers", options.layers, "Blocks of attention and perceptron")->capture_default_str();
  app.add_option("--width", options.width, "Numbers for each character, a multiple of 16")->capture_default_str();
  app.add_option("--context", options.context, "Characters of a sample")->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Of AdamW")->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first parameters and of the order of the samples")
      ->capture_default_str();
  app.add_option("--loss-curve", options.loss_curve, "Write the loss curve to this SVG file");
  app.add_option("--baseline", options.baseline,
                 "File with the samples per second of one rank: a run with one rank writes it, others print their "
                 "scaling efficiency");
  app.add_option("--checkpoints", options.checkpoints,
                 "Save the state of training to this folder every 10 steps, and go on from the newest one there");
  app.add_flag("--zero2", options.zero2, "Divide optimizer state and gradients among the ranks (ZeRO stage 2)");
  app.add_flag("--bf16", options.bf16, "Send gradients as bfloat16");
  app.add_flag("--powersgd{4}", options.powersgd_rank, "Send gradients as matrices of this rank (PowerSGD)");
  app.add_flag("--local-sgd{8}", options.local_sgd_period,
               "Average parameters every so many steps instead of gradients in every step");
  app.add_flag("--elastic", options.elastic, "Go on in the same processes when a rank fails (ddprun --max-restarts=N)");
}

// Two flags that can't go together, or an empty text.
std::string conflict(const Options& options) {
  std::vector<std::string> methods;
  if (options.zero2) methods.emplace_back("--zero2");
  if (options.bf16) methods.emplace_back("--bf16");
  if (options.powersgd_rank > 0) methods.emplace_back("--powersgd");
  if (options.local_sgd_period > 0) methods.emplace_back("--local-sgd");
  return methods.size() > 1 ? methods[0] + " and " + methods[1] + " exclude each other" : std::string();
}

void check(const CLI::App& app, const Options& options) {
  train::require_range(app, "--steps", options.steps, kStepsMax);
  train::require_range(app, "--batch-size", options.batch_size, train::kBatchSizeMax);
  train::require_range(app, "--layers", options.layers, kLayersMax);
  train::require_range(app, "--width", options.width, kWidthMax);
  if (options.width % kHeadWidth != 0) {
    train::refuse(app,
                  "--width is " + std::to_string(options.width) + ", not a multiple of " + std::to_string(kHeadWidth));
  }
  train::require_range(app, "--context", options.context, kContextMax);
  train::require_learning_rate(app, options.learning_rate);
  if (app.count("--powersgd") > 0) {
    const bool is_negative = options.powersgd_rank < 0;
    train::require_range(app, "--powersgd", is_negative ? 0 : static_cast<std::size_t>(options.powersgd_rank),
                         kPowerSgdRankMax);
  }
  if (app.count("--local-sgd") > 0) train::require_range(app, "--local-sgd", options.local_sgd_period, kPeriodMax);
  if (const std::string what = conflict(options); !what.empty()) train::refuse(app, what);
}

}  // namespace

std::string method_of(const Options& options) {
  if (options.zero2) return "ZeRO-2";
  if (options.bf16) return "bfloat16";
  if (options.powersgd_rank > 0) return "PowerSGD of rank " + std::to_string(options.powersgd_rank);
  if (options.local_sgd_period > 0) return "local SGD with period " + std::to_string(options.local_sgd_period);
  return "plain";
}

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
#ifdef TRAIN_TRANSFORMER_DATA
  options.data = TRAIN_TRANSFORMER_DATA;
#endif
  CLI::App app(
      "Trains a small transformer to predict the next character of a text, on any number of ranks.\n"
      "Run it alone, or under a launcher: ddprun --standalone --nproc-per-node=4 train_transformer",
      "train_transformer");
  declare(app, options);
  if (!train::parse(app, argc, argv)) return std::nullopt;
  check(app, options);
  return options;
}

}  // namespace transformer
