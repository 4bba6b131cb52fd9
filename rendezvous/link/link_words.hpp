// What a node says to the user about its connection to the job's endpoint.
//
// Pure.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/link/link_lost.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

// In these sentences `endpoint` and `place` are "node0:29400".

constexpr const char* kNoAnswerToHello = "no answer to our hello";
constexpr const char* kJoining = "joining the job";
constexpr const char* kHostHasLeft = "its node has left the job";

std::string orphans_text(std::chrono::milliseconds limit);
std::string serves_from_now_text(const std::string& lost_place, const std::string& why);
std::string connected_again_text(const std::string& place);
// limit: for how long the workers go on, and if there are none, the search.
std::string connection_lost_text(const std::string& place, const std::string& why, bool do_workers_go_on,
                                 std::chrono::milliseconds limit);
std::string no_answer_yet_text(const std::string& endpoint, const std::string& why, std::chrono::milliseconds left,
                               const std::vector<std::string>& own_addresses);
std::string refused_for_now_text(const std::string& place, const Refused& refused);
std::string forgeable_refusal_text(const std::string& why, std::chrono::milliseconds limit);
std::string joining_text(const std::string& place, const std::string& host_name);

// What to try, as far as it is known why nobody answers.
std::string unknown_name_advice(const std::string& endpoint_host);
std::string several_ports_advice(const std::string& endpoint_host);
extern const char* const kStrangerAdvice;
extern const char* const kStartAdvice;

// Errors of three parts. `last`: why the last attempt failed; empty where there was none.
struct LostJob {
  std::string run_id, host_name, endpoint, last;
  std::chrono::milliseconds limit{0};
};
LinkLost job_gone_error(const LostJob& job);

struct SearchedAddresses {
  int attempts = 0;
  std::vector<std::string> of_endpoint{}, own{};
};
LinkLost no_answer_error(const LostJob& job, const SearchedAddresses& searched, const std::string& try_this);

}  // namespace ddp::rendezvous
