// libddp's ranks for ddp_step_benchmark, under ddprun: steps of DistributedDataParallel.
#pragma once

namespace ddp::benchmarks {

int be_training_rank(const char* socket_name);  // the exit status

}  // namespace ddp::benchmarks
