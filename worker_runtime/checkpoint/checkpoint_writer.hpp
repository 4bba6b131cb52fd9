// Writes checkpoints in the background: gives copies to other ranks' memory, writes files, makes the checkpoint
// complete, removes old ones. All ranks do this together, in a group that nothing else uses.
//
// Threads: one caller. The work is done on a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>

#include "ddp/checkpointer.hpp"
#include "worker_runtime/checkpoint/background_task.hpp"
#include "worker_runtime/checkpoint/checkpoint_memory.hpp"
#include "worker_runtime/checkpoint/part_image.hpp"

namespace ddp::checkpoint {

class CheckpointWriter {
 public:
  struct Where {
    std::filesystem::path directory;  // empty: no files
    CheckpointForm form = CheckpointForm::parts;
    std::size_t keep = 2;
    std::shared_ptr<CheckpointMemory::Impl> memory;  // null: no copies in memory
  };

  enum class Extent : std::uint8_t { everywhere, memory_only };

  // Collective over the group, whose only user this is from now on. timeout: of wait(), and of each collective: ranks
  // wait for the slowest disk.
  CheckpointWriter(ProcessGroup group, Where where, std::chrono::milliseconds timeout);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Waits for the save under way. Prints an error that no call has thrown; but for an error of the group while an
  // exception is on its way.
  ~CheckpointWriter();

  // Waits for the checkpoint before. Throws what that failed with, or TimeoutError.
  void wait();

  // Memory for the next part. Requires that nothing is being written.
  Image take_image(std::size_t bytes);

  // Begins to write what take_image() gave, which is filled but for its header. Requires the same.
  void begin(PartLayout layout, Image image, Extent extent);

  // Instead, on a rank that can't make its part: the other ranks are told why.
  void begin_failed(const std::string& problem);

  // When the ranks can't work together any more: ends the group, and forgets what is being written. A rank whose disk
  // is slow does not wait for it: its thread goes on by itself, and changes no complete checkpoint.
  void give_up(const std::string& reason);

 private:
  class Task;

  std::shared_ptr<Task> task_;
  std::chrono::milliseconds timeout_;
  BackgroundTask thread_;
  int exceptions_ = std::uncaught_exceptions();  // on their way when this was made
};

}  // namespace ddp::checkpoint
