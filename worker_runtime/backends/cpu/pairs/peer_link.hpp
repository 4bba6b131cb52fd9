// The two connections between this rank and one rank of another host, and the protocol on them.
//
// Each rank opens one connection to the other, and sends messages on that connection only. The receiver's answers come
// back on the same connection, so an answer does not wait behind the data of another message. A rank that waits for a
// message also finds, by its own connection, that the peer is gone.
//
// A message is a Post, followed by its data. The message is complete with the receiver's Answer. The farewell of a rank
// that leaves is an Answer too, and the last one.
//
// Nothing here blocks.
//
// Threads: one at a time. PeerLinks says which functions need its lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/backends/cpu/pairs/pending_bytes.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"

namespace ddp::cpu_backend {

class PeerLink {
 public:
  // The header of a message; see words_of(). A change of Post or Answer changes RankHello::magic.
  struct Post {
    std::uint64_t number = 0;
    FingerprintWords call{};
  };

  struct Answer {
    enum class Kind : std::uint32_t { none, taken, mismatch, farewell };
    Kind kind = Kind::none;
    Presence presence = Presence::here;  // of a farewell
    std::uint64_t number = 0;
    FingerprintWords call{};  // of a mismatch: the receiver's call
  };

  // The connection that this rank opens, and the one that the peer opens.
  void set_out(core::TcpSocket socket) { out_ = std::move(socket); }
  void set_in(core::TcpSocket socket) { in_ = std::move(socket); }
  bool has_out() const { return static_cast<bool>(out_); }
  bool has_in() const { return static_cast<bool>(in_); }
  int out_socket() const { return out_.get(); }
  int in_socket() const { return in_.get(); }

  // Sends as much of a message as the socket takes now. If the connection is lost, is_lost() is true afterwards; an
  // answer may have come before that.
  void send(PendingBytes& message);

  // Reads the answers that have come. Returns whether there was any.
  bool read_answers();

  // The answer to message `number` of this rank, if it is the last one that has come; else null.
  const Answer* answer_to(std::uint64_t number) const {
    return answer_.kind != Answer::Kind::none && answer_.number == number ? &answer_ : nullptr;
  }

  // Whether a message is being received, so that the header of the next one can't be read yet.
  bool is_receiving() const { return is_receiving_; }

  // Reads what has come of the header of the next message. Returns whether there was any of it.
  bool read_post();
  bool has_post() const { return post_bytes_ == sizeof(Post); }
  const Post& post() const { return post_; }

  // The message of post() is being received, until end_receive(): its data is still to come, or its answer to go.
  void begin_receive() {
    post_bytes_ = 0;
    is_receiving_ = true;
  }
  void end_receive() { is_receiving_ = false; }

  // Receives as much of the data as has come; 0 if none has. Throws ConnectionLost.
  std::size_t receive(std::span<std::byte> room) { return core::receive_some(in_.get(), room); }

  // Sends as much of an answer as the socket takes now. Returns false if the connection is lost.
  bool send_answer(PendingBytes& answer);

  // Whether the peer takes nothing more, or has said farewell.
  bool is_lost() const { return is_lost_; }
  // Whether nothing more will come on the connection that this rank opened.
  bool is_over() const { return is_over_; }
  // How the peer left; `here` as long as it has said nothing.
  Presence presence() const { return presence_; }

  // What this rank learned elsewhere: the peer has left, or has sent what no rank of the group sends.
  void set_left(Presence how) {
    presence_ = how;
    is_lost_ = is_over_ = true;
  }
  void set_protocol_error() {
    presence_ = Presence::protocol_error;
    is_lost_ = true;
  }

  // Sends a farewell, and sends nothing after it.
  void close(Presence how);

 private:
  core::TcpSocket out_, in_;

  Post post_;  // of the next message
  std::size_t post_bytes_ = 0;
  bool is_receiving_ = false;

  Answer answer_;  // the last one, except a farewell
  std::array<std::byte, sizeof(Answer)> next_answer_{};
  std::size_t next_answer_bytes_ = 0;

  bool is_lost_ = false;
  bool is_over_ = false;
  Presence presence_ = Presence::here;
};

}  // namespace ddp::cpu_backend
