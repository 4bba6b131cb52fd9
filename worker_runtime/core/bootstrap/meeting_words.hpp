// What rank 0 and the ranks of other hosts say to each other while a group meets (meeting.hpp), over TCP.
#pragma once

#include <array>
#include <cstdint>

namespace ddp::core {

// From a rank of another host to rank 0, after its Hello.
struct GuestWord {
  enum class Kind : std::uint32_t {
    timed_out,  // it gives up at its deadline
    ready,      // a leader: all ranks of its host are there, and it listens at the endpoint
    linked,     // a leader: its connections to the other leaders stand
  };
  Kind kind = Kind::timed_out;
  std::uint32_t port = 0;
  std::array<char, 64> address{};
};

// From rank 0: kWelcome once the Hello is accepted; then size() numbers, the host of each rank (i32); to leaders then
// the endpoint of each host's leader; kGo once all are linked.
constexpr char kWelcome = 'w';
constexpr char kGo = 'g';
struct LeaderEndpoint {
  std::uint32_t port = 0;
  std::array<char, 64> address{};
};

}  // namespace ddp::core
