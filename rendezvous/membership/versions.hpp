// Which version of the protocol a node and an endpoint speak with each other.
//
// Pure. Protocol: docs/control_channel.md, "Versions".
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

// The highest version that both speak; or, if their ranges do not meet, why the node is refused and which side is to be
// upgraded. endpoint_program: "ddprun" or "ddp-rendezvous". Any numbers may come in.
std::variant<int, Refused> choose_version(const Hello& hello, const VersionRange& endpoint,
                                          const std::string& endpoint_program);

// At the node: why it gives up, if the endpoint chose a version that the node does not speak.
std::optional<Refused> refuse_version(const Welcome& welcome, const VersionRange& node);

}  // namespace ddp::rendezvous
