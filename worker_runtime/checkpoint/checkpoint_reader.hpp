// Finds the newest valid checkpoint that a group's ranks have together, in memory or on disks, and loads it.
//
// Threads: one caller.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddp/checkpointer.hpp"
#include "worker_runtime/checkpoint/checkpoint_memory.hpp"
#include "worker_runtime/checkpoint/training_state.hpp"

namespace ddp::checkpoint {

struct LoadFrom {
  std::filesystem::path directory;                 // empty: no files
  std::shared_ptr<CheckpointMemory::Impl> memory;  // null: no copies in memory
  std::function<void(const std::string&)> warn;    // on rank 0
  CollectiveOptions options;                       // ranks wait for the slowest disk
};

// Collective; as Checkpointer::load().
std::optional<LoadedCheckpoint> load_newest(ProcessGroup& group, const LoadFrom& from, TrainingState& state);

}  // namespace ddp::checkpoint
