// What the port answers to plain HTTP: whether it serves, and what its jobs do.
//
// Pure: the jobs go in, an answer comes out.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "rendezvous/control/channel.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

using JobViews = std::map<std::string, Membership::View>;  // by run id

// /healthz, to everybody; /v1/jobs (JSON) and /metrics (Prometheus' text format 0.0.4), to those on this host only.
Channel::HttpAnswer answer_operator(std::string_view target, bool is_local, const JobViews& jobs);

}  // namespace ddp::rendezvous
