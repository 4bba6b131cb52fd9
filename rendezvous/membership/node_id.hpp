#pragma once

#include <cstdint>

namespace ddp::rendezvous {

enum class NodeId : std::uint64_t {};  // never reused: a node that comes back gets a new one

}  // namespace ddp::rendezvous
