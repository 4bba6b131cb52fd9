// The files of a folder of checkpoints, by their names:
//   checkpoint_<round id>_step_<step>.safetensors      a checkpoint in a single file
//   checkpoint_<round id>_step_<step>/                 a checkpoint of several parts:
//     manifest.json                                    there once the checkpoint is complete
//     rank_<r>_of_<n>.safetensors                      by rank
//
// Threads: any; several processes may write to the folder at once. Errors: CheckpointError, with path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/manifest.hpp"

namespace ddp::checkpoint {

struct CheckpointPath {
  CheckpointId id;
  bool has_parts = false;  // a folder of parts, not a single file
  std::filesystem::path path;
};

// Where a checkpoint is, or goes to.
CheckpointPath single_file(const std::filesystem::path& directory, const CheckpointId& id);
CheckpointPath folder_of_parts(const std::filesystem::path& directory, const CheckpointId& id);
std::filesystem::path part_path(const CheckpointPath& folder, std::size_t rank, std::size_t rank_count);
std::filesystem::path manifest_path(const CheckpointPath& folder);

// Newest first. Empty if there is no such folder. Says nothing about whether they are complete.
std::vector<CheckpointPath> list_checkpoints(const std::filesystem::path& directory);

bool is_complete(const CheckpointPath& checkpoint);

// Makes the folder, and those above it that are missing, and brings each to disk in the one above it.
void make_directory(const std::filesystem::path& directory);

// Throws CheckpointError if `keep` complete checkpoints are newer than this one: it would be the first to be removed.
void require_not_superseded(const std::filesystem::path& directory, const CheckpointPath& checkpoint, std::size_t keep);

[[noreturn]] void fail_superseded(const CheckpointPath& checkpoint, const CheckpointPath& newest);

// Removes all but the newest `keep` complete checkpoints, and what is incomplete and older than the newest complete
// one. What can't be removed stays. A folder loses its manifest first, so that it is never taken for complete again.
void remove_old(const std::filesystem::path& directory, std::size_t keep);

// Throws CheckpointError.
std::string read_text(const std::filesystem::path& path, std::size_t bytes_max);

}  // namespace ddp::checkpoint
