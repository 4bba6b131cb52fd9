// Checkpoints on disk: safetensors files, written whole or not at all.
//
// Format: https://github.com/huggingface/safetensors - 8 bytes of header length (little-endian), a JSON header padded
// with spaces to a multiple of 8, then the data without holes. Any tool that reads safetensors reads these files.
//
// Threads: any, but one at a time for each file or directory. Memory is the host's: ranges on a GPU are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/round.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A tensor of a file, in memory that the program owns.
struct NamedTensor {
  std::string name;                 // unique in the file
  std::vector<std::int64_t> shape;  // row-major; its product is values.count
  ConstMemoryRange values;          // in host memory
};

// Texts that a file carries beside its tensors, by name.
using Metadata = std::map<std::string, std::string>;

// Writes `path` atomically: a temporary name in the same folder, fsync, rename, fsync of the folder. Whatever stops it
// half-way, an older file of that name stays whole. Throws CheckpointError with path and reason, InvalidArgument for a
// tensor whose shape does not fit its values, or that is on a GPU.
DDP_EXPORT void save_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                                 const Metadata& metadata = {});

// One file, its header read and checked: lengths, types, offsets without holes or overlap, size of the file.
class DDP_EXPORT SafetensorsFile {
 public:
  // What the header says of a tensor.
  struct Tensor {
    DataType type;                    // of its elements
    std::vector<std::int64_t> shape;  // row-major; no dimensions for a single element
    std::size_t count = 0;            // of its elements: the product of the shape
    std::size_t offset = 0;           // of its first byte in the file
  };

  // Throws CheckpointError, with path and reason, unless the file is whole and valid.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }                // as it was given to open()
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }  // by name
  const Metadata& metadata() const { return metadata_; }                     // empty if the file has none

  // Fills `values`. Throws CheckpointError where the name is absent, or type, shape or count differ.
  void read(const std::string& name, const std::vector<std::int64_t>& shape, MemoryRange values) const;

 private:
  std::filesystem::path path_;
  std::map<std::string, Tensor> tensors_;
  Metadata metadata_;
  std::shared_ptr<const void> descriptor_;  // the open file, so that a rename or removal can't change what is read
};

// A folder of checkpoints, one file for each (round, step): checkpoint_<round id>_step_<step>.safetensors. A file is
// never overwritten; the newest is that of the highest round, then the highest step. One rank writes, any rank reads.
class DDP_EXPORT CheckpointDirectory {
 public:
  // Keeps the newest `keep` (>= 1) files. Creates nothing yet.
  explicit CheckpointDirectory(std::filesystem::path directory, std::size_t keep = 2);

  // Writes a checkpoint, making the folder where it is missing, then removes what is older than the newest `keep`, and
  // temporary files that a dead process left. Returns its path. Throws as save_safetensors, and CheckpointError where
  // this (round, step) is there already; earlier checkpoints stay. An old round replaces nothing: where there are
  // `keep` newer files, the new one is itself what goes, and CheckpointError says by what it was superseded.
  std::filesystem::path save(const RoundId& round, std::uint64_t step, const std::vector<NamedTensor>& tensors,
                             const Metadata& metadata = {});

  // The newest valid checkpoint; empty where the folder is missing or holds none. A file that is broken is passed over
  // after `refused` was told its name and the reason. Throws CheckpointError where every file is broken.
  std::optional<SafetensorsFile> newest(const std::function<void(const std::string& message)>& refused = {}) const;

 private:
  std::filesystem::path directory_;
  std::size_t keep_;
};

}  // namespace DDP_ABI
}  // namespace ddp
