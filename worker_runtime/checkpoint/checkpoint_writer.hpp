// Writes checkpoints in the background: gives copies to other ranks' memory, writes files, makes the checkpoint
// complete, removes old ones. All ranks do this together, in a group that nothing else uses.
//
// Threads: one caller. The work is done on a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
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

  // Collective over the group, whose only user this is from now on.
  CheckpointWriter(ProcessGroup group, Where where, std::chrono::milliseconds timeout);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  // waits, and says on stderr what nobody has been told

  // Waits for the checkpoint before. Throws what that failed with, or TimeoutError.
  void wait();

  // Memory for the next part. Requires that nothing is being written.
  Image take_image(std::size_t bytes);

  // Begins to write what take_image() gave, which is filled but for its header. Requires the same.
  void begin(PartLayout layout, Image image);

  // Instead, on a rank that can't make its part: the other ranks are told why.
  void begin_failed(const std::string& problem);

 private:
  class Task;

  std::shared_ptr<Task> task_;
  std::chrono::milliseconds timeout_;
  BackgroundTask thread_;
};

}  // namespace ddp::checkpoint
