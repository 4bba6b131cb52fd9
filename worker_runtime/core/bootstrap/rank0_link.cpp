#include "worker_runtime/core/bootstrap/rank0_link.hpp"

#include <sys/socket.h>

#include "worker_runtime/core/bootstrap/meeting_errors.hpp"

namespace ddp::core {

void Rank0Link::send(const FollowerMessage& message) {
  try {
    if (send_all(descriptor(), std::as_bytes(std::span(&message, 1)), deadline_)) return;
  } catch (const ConnectionLost&) {
    throw_rank0_lost(who_, place_);
  }
  throw MeetingTimedOut();
}

void Rank0Link::receive(std::span<std::byte> bytes) {
  has_sent_ = false;
  try {
    if (receive_all(descriptor(), bytes, deadline_)) return;
  } catch (const ConnectionLost&) {
    throw_rank0_lost(who_, place_);
  }
  throw MeetingTimedOut();
}

void Rank0Link::look() {
  char next = 0;
  if (::recv(descriptor(), &next, 1, MSG_PEEK | MSG_DONTWAIT) != 1) throw_rank0_lost(who_, place_);
  has_sent_ = true;
}

}  // namespace ddp::core
