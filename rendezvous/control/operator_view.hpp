// What the port answers to plain HTTP: whether it serves, and what its jobs do.
//
// Pure: the jobs go in, an answer comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "rendezvous/membership/membership.hpp"
#include "rendezvous/wire/channel.hpp"

namespace ddp::rendezvous {

using JobViews = std::map<std::string, Membership::View>;  // by run id

struct HttpQuestion {
  std::string_view method;
  std::string_view target;
  std::string_view host;      // the Host header
  bool is_ours = false;       // it came from a loopback address, by a process of this user or of root
  bool has_token = false;     // it came with the token of this process, or with the one for scrapers
  bool takes_tokens = false;  // this process has one
};

// /healthz, to everybody; /v1/jobs (JSON) and /metrics (Prometheus' text format 0.0.4), to those that have a token
// and to this user's processes on this host, which must name it by a loopback address or as localhost: a page that had
// its own name resolve to one reads nothing. A malformed Host header is answered with 400.
// `jobs`: asked only where they are answered. `warnings`: how many there were of each reason (base::WarningTally).
Channel::HttpAnswer answer_operator(const HttpQuestion& question, const std::function<JobViews()>& jobs,
                                    const std::map<std::string, std::uint64_t>& warnings);

}  // namespace ddp::rendezvous
