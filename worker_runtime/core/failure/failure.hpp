// Why a group can no longer be used, as its ranks tell each other. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::core {

enum class Cause : std::uint8_t {
  timed_out,   // a call did not complete in its time
  transport,   // NCCL or the like found an error, mostly that another rank ended
  device,      // a call to the device failed
  mismatch,    // ranks called different things
  aborted,     // by the program
  left,        // the group was destroyed with calls under way
  round_over,  // the launcher ended the round
  ranks_lost,  // ranks that the call needs ended, left or gave up
};

struct Failure {
  Cause cause = Cause::aborted;
  int rank = 0;              // that found it
  std::string what{};        // in words; of `aborted` and `round_over` the reason that was given
  std::uint64_t number = 0;  // of the collective that failed, or of the message to or from a peer; 0: of neither
  std::string operation{};   // "all_reduce of 100 float32 (sum)"; empty: none
  std::size_t bytes = 0;     // 0: `operation` says enough
  std::vector<int> peers{};  // of a send or receive: the other ranks in it
  std::chrono::milliseconds limit{0};  // of `timed_out`

  bool is_pair() const { return !peers.empty(); }  // a send or receive
};

std::string encode(const Failure& failure);

// Empty if malformed. `size`: of the group.
std::optional<Failure> decode_failure(std::string_view text, int size);

}  // namespace ddp::core
