// What a node says while it is not decided which round is adopted: the last message of each kind. An agent says all of
// it again on another connection.
//
// Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

class HeldBack {
 public:
  // A warning does not replace the request to stop.
  void add(const ToMembership& message) {
    const auto* stop = std::get_if<StopAsked>(&message);
    if (stop == nullptr || !stop->is_warning || messages_.count(message.index()) == 0)
      messages_.insert_or_assign(message.index(), message);
  }
  bool empty() const { return messages_.empty(); }
  // In the order of their kinds, but a request to stop goes before the end of the round that it is the reason of. None
  // is left.
  std::vector<ToMembership> take() {
    std::vector<ToMembership> out;
    for (auto& [kind, message] : std::exchange(messages_, {})) out.push_back(std::move(message));
    std::stable_partition(out.begin(), out.end(),
                          [](const ToMembership& message) { return !std::holds_alternative<RoundEnded>(message); });
    return out;
  }

 private:
  std::map<std::size_t, ToMembership> messages_;
};

}  // namespace ddp::rendezvous
