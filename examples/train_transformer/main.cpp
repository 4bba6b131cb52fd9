// Trains a small transformer on a text, on one rank or on many.
//
//   train_transformer --baseline one.json                                  one rank
//   ddprun --standalone --nproc-per-node=4 train_transformer --baseline one.json --bf16 --loss-curve loss.svg
//   ddprun --standalone --nproc-per-node=4 --max-restarts=3 train_transformer --zero2 --elastic --checkpoints=saved
//
// training.cpp has the training loop, and engine.cpp what --zero2, --bf16, --powersgd and --local-sgd change. Ends with
// 0; with 2 for wrong flags or a wrong text; with 1 for any other error.
#include <ddp/checkpointer.hpp>
#include <ddp/elastic.hpp>
#include <ddp/process_group.hpp>

#include <exception>
#include <optional>

#include "agreed.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "text.hpp"
#include "training.hpp"

namespace {

// What the command line asks for, or what is wrong with it: the ranks agree on that before one of them prints it.
struct Input {
  std::optional<transformer::Options> options;  // empty if only help was asked for
  std::optional<transformer::Text> text;
  std::exception_ptr wrong;
};

Input read_input(int argc, char** argv) {
  Input input;
  try {
    input.options = transformer::parse_options(argc, argv);
    if (input.options) input.text = transformer::read_text(input.options->data);
  } catch (const train::InputError&) {
    input.wrong = std::current_exception();
  }
  return input;
}

void train_once(const Input& input) {
  ddp::ProcessGroup world = ddp::init_process_group();
  train::run_agreed(world, [&] {
    if (input.wrong) std::rethrow_exception(input.wrong);
  });
  transformer::TrainingState state(*input.options, *input.text);
  transformer::Training{*input.options, *input.text, state}.run(world);
}

// Goes on from the newest checkpoint if a rank fails: each rank has its part of it in memory, and a copy of another's.
void train_elastic(const Input& input) {
  ddp::CheckpointMemory memory;
  ddp::ElasticState nothing;  // all state is in checkpoints
  ddp::run_elastic(nothing, [&](ddp::ProcessGroup world) {
    transformer::TrainingState state(*input.options, *input.text);
    transformer::Training{*input.options, *input.text, state, &memory}.run(world);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Input input = read_input(argc, argv);
  const bool is_help = !input.options && !input.wrong;
  if (is_help) return 0;
  try {
    if (!input.wrong && input.options->elastic) {
      train_elastic(input);
    } else {
      train_once(input);
    }
    return 0;
  } catch (...) {
    return train::report_failure();
  }
}
