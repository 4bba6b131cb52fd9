// libddp's ranks for ddp_step_benchmark, under ddprun: steps of one model in each of the ways of variant.hpp.
//
// A request names a variant, or "no_sync", or "all_reduce" of all gradients in one buffer; its bytes are the model's. A
// call makes as many steps as the variant's period. With the memory "traced" a call leaves a trace (ddp/trace.hpp) of
// its collectives at trace_file().
#pragma once

#include <string>

namespace ddp::benchmarks {

std::string trace_file(const std::string& folder, const std::string& variant, int rank);

// The exit status.
int be_training_rank(const char* socket_name, const char* model, const char* trace_folder);

}  // namespace ddp::benchmarks
