// What a checkpoint of several parts holds: which elements of which tensor are where in which part.
//
// A part is a safetensors file, or its image in memory. Each rank makes one. The manifest lists all of them; a
// checkpoint is complete once its manifest is there.
//
// A manifest is a JSON object:
//   {"format": "ddprun checkpoint 1", "manifest_xxh3_64": "<16 hexadecimal digits>", "round": "<round id>", "step": 7,
//   "ranks": 4,
//    "parts": [{"bytes": 4096, "data_at": 512, "data_xxh3_64": "<16 hexadecimal digits>"}, ...],   by rank
//    "tensors": [{"name": "w", "dtype": "F32", "shape": [2, 3], "rank": 1,
//                 "pieces": [{"part": 0, "first": 0, "count": 6, "offset": 512}]}, ...]}
// "rank" is there for a tensor that each rank has for itself. A piece is `count` consecutive elements from `first` on;
// its bytes begin at `offset` of the part.
//
// Pure: text in, values out, no file. A manifest is not trusted: sizes and sums are checked before they are used.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/round.hpp"

namespace ddp::checkpoint {

constexpr int kAllRanks = -1;
constexpr std::size_t kManifestBytesMax = std::size_t{256} << 20;
constexpr std::size_t kPartsMax = std::size_t{1} << 20;

struct TensorKey {
  int rank = kAllRanks;  // whose it is; kAllRanks: the same tensor on all ranks
  std::string name;

  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

struct Piece {
  std::size_t part = 0;
  std::uint64_t first = 0;  // element of the tensor
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  // bytes from the start of the part
};

struct ManifestTensor {
  DataType type = DataType::float32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::vector<Piece> pieces;        // by their first elements
};

struct Part {
  std::uint64_t bytes = 0;                       // of the whole part
  std::optional<std::uint64_t> data_checksum{};  // XXH3, 64 bits, of what follows the header; empty: not known
  std::uint64_t data_at = 0;                     // byte where that begins
};

struct CheckpointId {
  RoundId round;
  std::uint64_t step = 0;

  friend bool operator==(const CheckpointId& a, const CheckpointId& b) {
    return a.round == b.round && a.step == b.step;
  }
  friend bool operator<(const CheckpointId& a, const CheckpointId& b) {
    return a.round == b.round ? a.step < b.step : a.round < b.round;
  }
};

struct Manifest {
  CheckpointId id;
  std::vector<Part> parts;  // by rank; one of a checkpoint in a single file
  std::map<TensorKey, ManifestTensor> tensors;
  int rank_count = 1;  // of the ranks that saved it; 0 if that is not known
};

std::string encode(const Manifest& manifest);  // of parts with checksums

std::string text_of_checksum(std::uint64_t checksum);  // 16 hexadecimal digits

// Throws CheckpointError with the reason; the caller adds the path.
Manifest parse_manifest(std::string_view json);

// The same for the text of a file, whose checksum is compared first.
Manifest parse_checked_manifest(std::string text);

// The manifest of all parts, from what each rank says of its own: manifests with that one part. By rank. Throws
// MismatchError if the ranks disagree on the checkpoint's id, or on the type or the shape of a tensor, and unless each
// element of a tensor is there once.
Manifest merge(std::span<const Manifest> of_ranks);

// Elements of a tensor that a rank has, or wants.
struct WantedPiece {
  TensorKey key;
  DataType type = DataType::float32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// Bytes of a part that go to a wanted piece.
struct Read {
  std::size_t part = 0;
  std::uint64_t from = 0;  // byte of the part
  std::size_t wanted = 0;  // index of the wanted piece
  std::uint64_t to = 0;    // byte of it
  std::uint64_t bytes = 0;
};

// In the order of parts, and of the bytes in them. Throws CheckpointError, with the name of the tensor, if the
// checkpoint has none of that name, one of another type or shape, or not all of its elements.
std::vector<Read> plan_reads(const Manifest& manifest, std::span<const WantedPiece> wanted);

}  // namespace ddp::checkpoint
