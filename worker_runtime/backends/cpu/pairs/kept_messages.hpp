// Messages that a rank has received before it called for them: they have other tags, and came before the message that
// the rank waited for. Their sends are complete. They are kept in the order in which they came.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::cpu_backend {

class KeptMessages {
 public:
  // The limits. A message beyond them stays with its sender, and so do the messages behind it.
  static constexpr std::size_t kCountMax = 1'024;
  static constexpr std::size_t kBytesMax = 64u << 20;

  struct Message {
    int peer = 0;
    int tag = 0;
    std::uint64_t number = 0;  // among the messages of its peer
    core::Fingerprint call{};  // of the sender
    std::vector<std::byte> bytes{};
  };

  // Reserves room for a message that is being received; `sent` is its call, with the tag as the root. Several messages
  // may be received at the same time. Returns nothing if there is no room.
  std::optional<Message> prepare(int peer, std::uint64_t number, const core::Fingerprint& sent) {
    const std::size_t bytes = sent.count * size_of(sent.type);
    const bool has_room = count_ < kCountMax && bytes <= kBytesMax && bytes_ <= kBytesMax - bytes;
    if (!has_room) return std::nullopt;
    ++count_;
    bytes_ += bytes;
    return Message{peer, tag_of(sent), number, sent, std::vector<std::byte>(bytes)};
  }

  // Keeps a message of prepare(), all of which has been received.
  void keep(Message message) { messages_.push_back(std::move(message)); }

  bool has(int peer, int tag) const { return index_of(peer, tag) < messages_.size(); }

  // The first message of the peer that has this tag. Requires has().
  Message take(int peer, int tag) {
    const std::size_t index = index_of(peer, tag);
    Message message = std::move(messages_[index]);
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(index));
    --count_;
    bytes_ -= message.bytes.size();
    return message;
  }

 private:
  std::size_t index_of(int peer, int tag) const {
    const auto found = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const Message& message) { return message.tag == tag && message.peer == peer; });
    return static_cast<std::size_t>(found - messages_.begin());
  }

  std::deque<Message> messages_;
  std::size_t count_ = 0;  // includes the messages that are being received, as does the next
  std::size_t bytes_ = 0;
};

}  // namespace ddp::cpu_backend
