// A part of a checkpoint as it is in memory before it is written: a safetensors file.
//
//   const PartLayout layout(entries, id, rank, ranks);
//   ... allocate layout.bytes(); copy entry i to layout.offset_of(i) ...
//   const Part part = layout.seal(image);        // writes the header, with the checksum of the data
//
// The name of a tensor in the part: its own; "name[first:end]" if the part has only these elements of it; and
// "rank_3/name" if each rank has a tensor of that name for itself.
//
// Pure but for the memory given; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/memory.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"

namespace ddp::checkpoint {

// Elements of a tensor, of one rank or of all.
struct Entry {
  TensorKey key;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::uint64_t first = 0;
  MemoryRange values;  // on any device
};

// Which elements of tensors that all ranks have alike this rank saves: an equal share of their bytes, in whole
// elements. Entries are whole tensors.
std::vector<Entry> share_of(const std::vector<Entry>& entries, int rank, int rank_count);

class PartLayout {
 public:
  // rank: that saves the part. Throws CheckpointError as encode_header().
  PartLayout(std::span<const Entry> entries, const CheckpointId& id, int rank, int rank_count);

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t offset_of(std::size_t entry) const { return offsets_[entry]; }

  // image: bytes() of them, with all data in place. Writes what is before the data.
  Part seal(std::byte* image) const;

  // Of this part only. Its number is 0.
  Manifest manifest(const Part& part) const;

 private:
  struct Place {
    TensorKey key;
    DataType type;
    std::vector<std::int64_t> shape;
    std::uint64_t first, count;
  };

  CheckpointId id_;
  std::string header_;
  std::vector<Place> places_;           // by entry
  std::vector<std::uint64_t> offsets_;  // by entry: from the start of the part
  std::uint64_t bytes_ = 0;
};

// Of a single safetensors file, whether a PartLayout made it or another program. Has no checksum in the second case.
Manifest manifest_of(const SafetensorsFile& file, std::uint64_t data_at, std::uint64_t file_bytes,
                     const CheckpointId& id);

}  // namespace ddp::checkpoint
