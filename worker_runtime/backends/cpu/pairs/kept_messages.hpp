// Messages that a rank has received before it asked for them, because they stood before one that it did ask for: of
// other tags. Their sends are complete. In the order in which they came.
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
  // Beyond this a message stays with its sender, and the messages behind it too.
  static constexpr std::size_t kCountMax = 1'024;
  static constexpr std::size_t kBytesMax = 64u << 20;

  struct Message {
    int peer = 0;
    int tag = 0;
    std::uint64_t number = 0;  // among those of its peer
    core::Fingerprint call{};  // the send
    std::vector<std::byte> bytes{};
  };

  // Reserves room for a message, to be kept once its bytes have come: `sent` is its call, with the tag. Empty if there
  // is no room. Several may be on their way.
  std::optional<Message> prepare(int peer, std::uint64_t number, const core::Fingerprint& sent) {
    const std::size_t bytes = sent.count * size_of(sent.type);
    const bool has_room = count_ < kCountMax && bytes <= kBytesMax && bytes_ <= kBytesMax - bytes;
    if (!has_room) return std::nullopt;
    ++count_;
    bytes_ += bytes;
    return Message{peer, tag_of(sent), number, sent, std::vector<std::byte>(bytes)};
  }

  // One of prepare().
  void keep(Message message) { messages_.push_back(std::move(message)); }

  bool has(int peer, int tag) const { return index_of(peer, tag) < messages_.size(); }

  // The first of its tag from the peer. Requires has().
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
  std::size_t count_ = 0;  // of these and of those on their way, as the next
  std::size_t bytes_ = 0;
};

}  // namespace ddp::cpu_backend
