#include "worker_runtime/backends/cpu/pairs/peer_link.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace ddp::cpu_backend {

namespace {

using core::ConnectionLost;
using core::receive_some;
using core::send_some;

// Returns false if the connection is lost.
bool send_pending(PendingBytes& pending, int socket) {
  while (!pending.empty()) {
    msghdr message{};
    message.msg_iov = pending.parts.data();
    message.msg_iovlen = pending.parts.size();
    const ssize_t count = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      pending.advance(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
  return true;
}

}  // namespace

void PeerLink::send(PendingBytes& message) {
  if (!send_pending(message, out_.get())) is_lost_ = true;
}

bool PeerLink::send_answer(PendingBytes& answer) { return send_pending(answer, in_.get()); }

bool PeerLink::read_answers() {
  bool has_read = false;
  try {
    while (out_ && presence_ == Presence::here) {
      const std::size_t now = receive_some(out_.get(), std::span(next_answer_).subspan(next_answer_bytes_));
      if (now == 0) break;
      next_answer_bytes_ += now;
      if (next_answer_bytes_ < next_answer_.size()) continue;
      next_answer_bytes_ = 0;
      has_read = true;
      Answer answer;
      std::memcpy(&answer, next_answer_.data(), sizeof answer);
      if (answer.kind == Answer::Kind::taken || answer.kind == Answer::Kind::mismatch) {
        answer_ = answer;
        continue;
      }
      const bool is_farewell = answer.kind == Answer::Kind::farewell && answer.presence != Presence::here &&
                               answer.presence < Presence::protocol_error;
      presence_ = is_farewell ? answer.presence : Presence::protocol_error;
      is_lost_ = true;
    }
  } catch (const ConnectionLost&) {
    is_lost_ = is_over_ = true;
  }
  return has_read;
}

bool PeerLink::read_post() {
  try {
    const auto post = std::as_writable_bytes(std::span(&post_, 1));
    const std::size_t now = receive_some(in_.get(), post.subspan(post_bytes_));
    post_bytes_ += now;
    return now > 0;
  } catch (const ConnectionLost&) {
    is_lost_ = true;
    return false;
  }
}

void PeerLink::close(Presence how) {
  const Answer farewell{Answer::Kind::farewell, how, 0, {}};
  try {
    if (in_) static_cast<void>(send_some(in_.get(), std::as_bytes(std::span(&farewell, 1))));
  } catch (const ConnectionLost&) {
  }
  if (in_) ::shutdown(in_.get(), SHUT_WR);
  if (out_) ::shutdown(out_.get(), SHUT_WR);
}

}  // namespace ddp::cpu_backend
