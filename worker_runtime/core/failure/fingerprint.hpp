// What a rank called, in a form small enough to be shown to all ranks with every call, so that a rank that called
// something else is found before any result is written.
//
// Pure. Fields that mean nothing for a kind are zero, so that equal calls have equal fingerprints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

using process_group::Collective;
using process_group::CollectiveKind;
using process_group::Within;

constexpr std::uint64_t kPlainMemory = 0;  // a location: memory that only its own process sees

struct Fingerprint {
  CollectiveKind kind = CollectiveKind::barrier;
  Within within = Within::nothing;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;                           // of an all_gather_v and a reduce_scatter_v: a checksum of all counts
  std::uint64_t count = 0;                // elements that each rank gives or gets; bytes for allocate; all of an
                                          // all_gather_v or a reduce_scatter_v; 0 for all_to_all_v, where ranks differ
  std::uint64_t location = kPlainMemory;  // of the shared memory it works on; ranks may differ in it
};

using FingerprintWords = std::array<std::uint64_t, 3>;  // as it stands in the control block

Fingerprint fingerprint_of(const Collective& collective);
FingerprintWords encode(const Fingerprint& fingerprint);
Fingerprint decode(const FingerprintWords& words);

// "all_reduce of 100 float32 (sum)"
std::string describe(const Fingerprint& fingerprint);

// Whether the two are one and the same collective, wherever its memory lies.
bool same_call(const Fingerprint& a, const Fingerprint& b);
inline bool same_call(const FingerprintWords& a, const FingerprintWords& b) { return a[0] == b[0] && a[1] == b[1]; }
inline std::uint64_t location_of(const FingerprintWords& words) { return words[2]; }

// "rank 0 called all_reduce of 100 float32 (sum), rank 1 called barrier": the lower rank first.
struct CallOfRank {
  int rank = 0;
  std::string call{};  // of describe()
};
std::string describe_difference(const CallOfRank& one, const CallOfRank& other);

// The same for the first rank whose call differs from that of rank 0; empty: all ranks called the same.
std::optional<std::string> first_difference(const std::vector<Fingerprint>& of_ranks);

}  // namespace ddp::core
