// What the process that serves a job's membership says of nodes and to nodes.
//
// Pure.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

inline std::string node_refused_text(const std::string& host, const std::string& address, const Refused& refused) {
  return "host " + host + " (" + address + ") was refused: " + refused.what;
}

inline Refused too_many_nodes(std::size_t nodes, bool has_round) {
  return {"the job has " + std::to_string(nodes) + " nodes and spares already", "fewer spares, or a larger --nnodes",
          false, has_round};
}

inline std::string serves_already_text(const std::string& host, const std::string& address) {
  return "host " + host + " (" + address + ") serves the job already";
}

constexpr const char* kClosedHere = "the endpoint closed its connection";
constexpr const char* kHelloOutOfPlace = "malformed message: hello comes first, and once";

}  // namespace ddp::rendezvous
