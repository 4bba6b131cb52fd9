// Trains a multi-layer perceptron on GPUs: the same program for one and for many.
//
//   train_mlp_cuda                                                      one GPU
//   ddprun --standalone --nproc-per-node=gpu train_mlp_cuda             all of this machine
//   train_mlp_cuda --synthetic --layers=4 --width=8192 --batch-size=512 --trace=trace.json
//
// training.cpp has the training loop. Backward makes gradients ready layer by layer, and the all-reduce of a full
// bucket overlaps the layers below: --trace shows it. Ends with 0; with 2 for wrong flags or data; with 1 for any other
// error.
#include <ddp/process_group.hpp>
#include <ddp/trace.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "device.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "training.hpp"

namespace {

std::string path_of_rank(const std::filesystem::path& path, int rank) {
  return (path.parent_path() / (path.stem().string() + "." + std::to_string(rank) + path.extension().string()))
      .string();
}

// What ends with the program, the last first: the trace has the collectives that end with the group.
struct Program {
  std::unique_ptr<ddp::Trace> trace;
  ddp::ProcessGroup world;
  std::optional<train::Training> training;

  void run(const train::CudaOptions& options) {
    ddp::InitOptions init;
    init.backend = "nccl";
    init.share_device = options.share_device;
    world = ddp::init_process_group(init);
    train::check(cudaSetDevice(world.device().index),
                 "taking the GPU");  // in this program's own copy of the CUDA runtime
    if (!options.trace.empty()) trace = std::make_unique<ddp::Trace>(path_of_rank(options.trace, world.rank()));
    training.emplace(world, options);
    training->run();
    training.reset();
    world = {};
    if (trace) trace->finish();
  }
};

}  // namespace

int main(int argc, char** argv) {
  Program program;
  try {
    if (const auto options = train::parse_cuda_options(argc, argv)) program.run(*options);
    return 0;
  } catch (const train::InputError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return train::kExitWrongInput;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return train::kExitFailure;
  }
}
