// What the process that serves a job's membership says of nodes and to nodes.
//
// Pure.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

inline Refused too_many_nodes(std::size_t nodes, bool has_round) {
  return {"the job has " + std::to_string(nodes) + " nodes and spares already", "fewer spares, or a larger --nnodes",
          false, has_round};
}

constexpr const char* kTooManyJobsAdvice =
    "end jobs that nobody needs (http://<endpoint>/v1/jobs lists them), or try again later";

inline std::string too_many_jobs_text(std::size_t jobs) {
  return "the endpoint has " + std::to_string(jobs) + " jobs already, as many as it takes";
}

inline std::string too_many_jobs_of_address_text(std::size_t jobs) {
  return "the endpoint has " + std::to_string(jobs) +
         " jobs that nodes of this address have begun, as many as it takes from one address";
}

inline std::string serves_already_text(const std::string& host, const std::string& address) {
  return "host " + host + " (" + address + ") serves the job already";
}

constexpr const char* kClosedHere = "the endpoint closed its connection";
constexpr const char* kHelloOutOfPlace = "malformed message: hello comes first, and once";

}  // namespace ddp::rendezvous
