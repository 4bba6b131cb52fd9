// Trains a small neural network on the breast cancer data, on one worker or on many.
//
//   train_breast_cancer                                                  one worker
//   ddprun --standalone --nproc-per-node=4 train_breast_cancer --resume   four, which go on after a failure
//
// trainer.cpp has the training loop. SIGTERM or ctrl-c to ddprun makes all workers end after the same step, with a
// checkpoint from which --resume goes on. Ends with 0; with 2 for wrong flags or data; with 1 for any other error.

#include <ddp/process_group.hpp>

#include <exception>
#include <optional>

#include "agreed.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "trainer.hpp"

namespace {

// What the command line says, or what is wrong with it: the ranks agree on that before one of them prints it.
struct CommandLine {
  std::optional<train::Options> options;  // empty where only help was asked for
  std::exception_ptr wrong;
};

CommandLine read_command_line(int argc, char** argv) {
  try {
    return {train::parse_options(argc, argv), nullptr};
  } catch (const train::InputError&) {
    return {std::nullopt, std::current_exception()};
  }
}

void run(const CommandLine& command_line) {
  ddp::ProcessGroup world = ddp::init_process_group();
  train::run_agreed(world, [&] {
    if (command_line.wrong) std::rethrow_exception(command_line.wrong);
  });
  train::Trainer trainer(world, *command_line.options);
  trainer.run();
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine command_line = read_command_line(argc, argv);
  const bool is_help = !command_line.options && !command_line.wrong;
  if (is_help) return 0;
  try {
    run(command_line);
    return 0;
  } catch (...) {
    return train::report_failure();
  }
}
