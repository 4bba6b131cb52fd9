// How far one rank came in a group, as ranks tell each other when it has failed. Pure.
//
// One line of text for each rank; a line that is malformed tells nothing, and hurts nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::core {

// Numbers are those of collectives, from 1; 0: none yet.
struct RankProgress {
  std::uint64_t called = 0;
  std::uint64_t started = 0;  // on the device: everything that its inputs wait for is done
  std::uint64_t completed = 0;
  std::uint64_t oldest = 0;  // the number of the oldest call that has not completed; 0: all have
  std::string operation{};   // that call, or else the last one: "all_reduce of 100 float32 (sum)"; empty: none yet

  friend bool operator==(const RankProgress& a, const RankProgress& b) = default;
};

constexpr std::size_t kOperationBytesMax = 200;

// With the newline at its end.
std::string encode(int rank, const RankProgress& progress);

// By rank; empty for those of whom the text holds nothing.
std::vector<std::optional<RankProgress>> decode_progress(std::string_view text, int size);

// "rank 0 called 7, completed 6"
std::string describe(int rank, const std::optional<RankProgress>& progress);

}  // namespace ddp::core
