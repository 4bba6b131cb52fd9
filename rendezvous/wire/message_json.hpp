// The messages of rendezvous/membership as JSON texts, and back.
//
// Unknown fields are ignored, so that a newer peer may say more; so is a message of an unknown type. A text is refused
// where it is no JSON, lacks a field that has no default, or holds a value out of its range; the limit on its length is
// the channel's. The ranges are those of docs/control_channel.md, "What a field may hold". What is written keeps to
// them: texts are made printable (base/printable.hpp) and cut. A field that older peers do not write has the value that
// they meant.
//
// Pure. Protocol: docs/control_channel.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

// What one message may occupy; a failure's report with its last lines of stderr is the longest.
constexpr std::size_t kControlMessageBytesMax = 256u << 10;

std::string to_json(const ToMembership& message);
std::string to_json(const ToAgent& message);

// Throw Error with what is wrong. Empty: the type is unknown, and the message is to be ignored. `workers`: of the
// agent, whose ranks are to fit into the world of a round.
std::optional<ToMembership> to_membership_of(std::string_view json);
std::optional<ToAgent> to_agent_of(std::string_view json, int workers = 1);

}  // namespace ddp::rendezvous
