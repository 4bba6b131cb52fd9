#include "ddp/checkpoint.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/write_safetensors.hpp"

#include <system_error>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using checkpoint::CheckpointPath;

constexpr int kListingsMax = 100;  // how often a reader meets a writer that prunes before it gives up

// Newest first. Only checkpoints in a single file.
std::vector<CheckpointPath> list(const std::filesystem::path& directory) {
  std::vector<CheckpointPath> entries = checkpoint::list_checkpoints(directory);
  std::erase_if(entries, [](const CheckpointPath& each) { return each.has_parts; });
  return entries;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::filesystem::path directory, std::size_t keep)
    : directory_(std::move(directory)), keep_(keep) {
  if (keep_ == 0) throw InvalidArgument("keep = 0 checkpoints\nwhere: CheckpointDirectory\ntry:   1 or more");
  agent_link::tell_checkpoint_directory();
}

std::filesystem::path CheckpointDirectory::save(const RoundId& round, std::uint64_t step,
                                                const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  checkpoint::make_directory(directory_);
  const CheckpointPath saved = checkpoint::single_file(directory_, {round, step});
  {
    checkpoint::AtomicFile file(saved.path);
    checkpoint::write_safetensors(file, tensors, metadata);
    file.commit(checkpoint::AtomicFile::Existing::refuse);
  }
  const std::vector<CheckpointPath> entries = list(directory_);
  std::error_code ignored;  // what can't be removed now will be the next time
  for (std::size_t i = keep_; i < entries.size(); ++i) std::filesystem::remove(entries[i].path, ignored);
  checkpoint::remove_abandoned(directory_);
  if (entries.size() >= keep_ && saved.id < entries[keep_ - 1].id) checkpoint::fail_superseded(saved, entries.front());
  agent_link::tell_checkpoint_saved(step);
  return saved.path;
}

std::optional<SafetensorsFile> CheckpointDirectory::newest(
    const std::function<void(const std::string& message)>& refused) const {
  for (int listing = 0; listing < kListingsMax; ++listing) {
    bool vanished = false;
    const std::vector<CheckpointPath> entries = list(directory_);
    for (const CheckpointPath& entry : entries) {
      try {
        return SafetensorsFile::open(entry.path);
      } catch (const CheckpointError& error) {
        std::error_code ignored;
        vanished = !std::filesystem::exists(entry.path, ignored);
        if (vanished) break;  // pruned meanwhile, so there is a newer one: look again
        if (refused) refused(error.what());
      }
    }
    if (entries.empty()) return {};
    if (!vanished) break;
  }
  throw CheckpointError("no checkpoint in " + directory_.string() +
                        " can be read, though there are files\nwhere: looking for the newest checkpoint\n"
                        "try:   remove the broken files to start afresh");
}

}  // namespace ddp
