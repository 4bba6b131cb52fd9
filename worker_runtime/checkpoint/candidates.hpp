// Which checkpoint all ranks load, and from which rank each part of it comes.
//
// Pure: each rank says what it can reach (offers); all ranks compute the same candidates from all offers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/checkpoint/manifest.hpp"

namespace ddp::checkpoint {

enum class Source : std::uint8_t { memory, parts, single };  // in the order of preference

// What one rank can reach of one checkpoint.
struct Offer {
  CheckpointId id;
  Source source = Source::memory;
  std::size_t part_count = 0;           // 0: it has no valid manifest
  std::uint64_t manifest_checksum = 0;  // so that parts of two checkpoints of one id are never mixed
  std::vector<std::size_t> parts;       // that it can read, ascending
  std::string place;                    // path, for messages
  std::string problem;                  // why it can't be loaded, or why a part is missing; empty: nothing is wrong
  bool is_complete = true;              // false: its writer did not come to the end
};

std::string encode(const std::vector<Offer>& offers);
std::vector<Offer> parse_offers(std::string_view text);  // text of encode() on a rank of this job

struct Candidate {
  CheckpointId id;
  Source source = Source::memory;
  std::uint64_t manifest_checksum = 0;
  std::string place;
  int manifest_rank = 0;       // the lowest rank that has its manifest
  std::vector<int> providers;  // rank that reads each part
  std::string problem;         // empty: it can be loaded, as far as offers tell
  bool is_complete = true;     // false: some rank has it without its manifest, so its writers did not come to the end
};

// Newest first; of equal checkpoints in the order of Source. offers[r] is of rank r. Reading is spread over the ranks.
std::vector<Candidate> candidates_of(const std::vector<std::vector<Offer>>& offers);

}  // namespace ddp::checkpoint
