// What rank 0 and the ranks of other hosts send to each other over TCP while a group meets (meeting.hpp).
#pragma once

#include <array>
#include <cstdint>

namespace ddp::core {

// From a rank of another host to rank 0, after its RankHello.
struct FollowerMessage {
  enum class Kind : std::uint32_t {
    timed_out,  // it gives up at its deadline
    ready,      // a leader: all ranks of its host are there, and it listens at the endpoint
    linked,     // a leader: its connections to the other leaders stand
  };
  Kind kind = Kind::timed_out;
  std::uint32_t port = 0;
  std::array<char, 64> address{};
};

// From rank 0: kAccepted when the RankHello is accepted; then size() numbers, the host of each rank (i32); then, to
// leaders only, a LeaderEndpoint for each host, and kComplete when all are linked.
constexpr char kAccepted = 'w';
constexpr char kComplete = 'g';
struct LeaderEndpoint {
  std::uint32_t port = 0;
  std::array<char, 64> address{};
};

}  // namespace ddp::core
