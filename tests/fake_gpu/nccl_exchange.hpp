// One exchange of messages among the ranks of a communicator, all at once: whatever a rank sends to another arrives in
// order, and no order of the ranks' calls can make two wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/cut.hpp"
#include "tests/fake_gpu/nccl_meeting.hpp"

namespace ddp::fake_gpu {

// On the wire: a header, then the bytes.
struct Header {
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;  // what the message belongs to: the receiver expects the same
};

struct Outgoing {
  std::uint64_t tag = 0;
  std::span<const std::byte> bytes;
};

struct Incoming {
  std::uint64_t tag = 0;
  std::span<std::byte> bytes;
};

// What goes to and comes from each rank. What a rank sends itself is none of it.
struct Messages {
  explicit Messages(int ranks) : to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks)) {}

  std::vector<std::deque<Outgoing>> to;
  std::vector<std::deque<Incoming>> from;
};

struct ExchangeFault {
  bool die_inside = false;
};

// Ends when all is sent and all has arrived, or cannot.
Outcome exchange(Messages messages, const Links& links, const base::Cut& abort, ExchangeFault fault = {});

}  // namespace ddp::fake_gpu
