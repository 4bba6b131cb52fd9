// All that a run needs to go on at the exact step at which it was stopped, in a checkpoint and out of it.
//
// Rank 0 writes and reads; the others get what it read by broadcast, so they need no access to the folder.
#pragma once

#include <ddp/checkpoint.hpp>
#include <ddp/distributed_data_parallel.hpp>
#include <ddp/process_group.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "sgd.hpp"

namespace train {

// Where training stands. In samples of all workers, so that a run with another number of workers can go on from it: the
// order of an epoch's samples does not depend on that number.
struct Position {
  std::int64_t step = 0;  // optimizer steps since the start
  std::int64_t epoch = 0;
  std::int64_t samples = 0;  // of this epoch, seen by all workers together
};

// What a checkpoint must have been made with to be gone on from.
struct RunIdentity {
  std::uint64_t seed = 0;
};

// Writes parameters, momentum and position. Rank 0 only. Throws ddp::CheckpointError.
std::filesystem::path save_state(ddp::CheckpointDirectory& directory, const ddp::RoundId& round,
                                 const std::vector<ddp::Parameter>& parameters, Sgd& optimizer,
                                 const Position& position, const RunIdentity& identity);

// Fills all of these from a checkpoint. Rank 0 only. Throws ddp::CheckpointError, and InputError where the checkpoint
// is of a run with another seed.
Position load_state(const ddp::SafetensorsFile& file, const std::vector<ddp::Parameter>& parameters, Sgd& optimizer,
                    const RunIdentity& identity);

// Collective: every rank gets rank 0's momentum and position. (DistributedDataParallel broadcasts the parameters.)
void broadcast_state(ddp::ProcessGroup& world, Sgd& optimizer, Position& position);

}  // namespace train
