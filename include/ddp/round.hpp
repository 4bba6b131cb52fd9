// The id of a round: one set of ranks that work together from start to end. It fences what outlives a process, such as
// checkpoints: nothing of an older round may replace what a newer one wrote.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Ids are ordered: a later round of a job is greater than an earlier one.
struct RoundId {
  std::uint64_t term = 0;         // grows from run to run: Unix seconds, or one above the highest seen
  std::uint64_t term_random = 0;  // the fraction of the second in the upper half, random bits in the lower
  std::uint32_t number = 0;       // grows by one whenever the set of ranks, or their processes, changes

  [[nodiscard]] friend bool operator==(const RoundId& a, const RoundId& b) { return a.key() == b.key(); }
  [[nodiscard]] friend bool operator!=(const RoundId& a, const RoundId& b) { return !(a == b); }
  [[nodiscard]] friend bool operator<(const RoundId& a, const RoundId& b) { return a.key() < b.key(); }

  // What ids are compared by.
  std::tuple<std::uint64_t, std::uint64_t, std::uint32_t> key() const { return {term, term_random, number}; }
};

// "1763723112-9f3a17c2b4d8e6f0-3": term in decimal, the random part as 16 hexadecimal digits, the number in decimal.
// ddprun hands it to workers in this form as DDPRUN_ROUND_ID.
DDP_EXPORT std::string to_string(const RoundId& id);
// The id of a text that to_string() made; empty for any other text.
DDP_EXPORT std::optional<RoundId> parse_round_id(const std::string& text);

}  // namespace DDP_ABI
}  // namespace ddp
