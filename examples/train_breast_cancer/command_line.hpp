// What the command lines of the examples have in common.
#pragma once

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string>

#include "input_error.hpp"

namespace train {

constexpr std::size_t kBatchSizeMax = 1'000'000;

[[noreturn]] inline void refuse(const CLI::App& app, const std::string& what) {
  throw InputError(what + "\nwhere: the command line of " + app.get_name() + "\ntry:   " + app.get_name() + " --help");
}

inline void require_range(const CLI::App& app, const char* option, std::size_t value, std::size_t max) {
  if (value < 1 || value > max) {
    refuse(app, std::string(option) + " is " + std::to_string(value) + ", not 1 to " + std::to_string(max));
  }
}

inline void require_learning_rate(const CLI::App& app, double rate) {
  if (std::isfinite(rate) && rate > 0) return;
  refuse(app, "--learning-rate is " + std::to_string(rate) + ", not a number above 0");
}

// Those that say how to train.
template <class Options>
void check_training(const CLI::App& app, const Options& options) {
  require_range(app, "--batch-size", options.batch_size, kBatchSizeMax);
  if (options.epochs < 1) refuse(app, "--epochs is 0, not 1 or more");
  require_learning_rate(app, options.learning_rate);
}

// False where only help was asked for, which the first rank prints; that is asked of the environment, because help
// needs no group.
inline bool parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    const char* const rank = std::getenv("RANK");
    if (rank == nullptr || std::string(rank) == "0") std::cout << app.help() << std::flush;
    return false;
  } catch (const CLI::ParseError& error) {
    refuse(app, error.what());
  }
}

}  // namespace train
