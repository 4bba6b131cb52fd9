// What the two sides of a meeting (meeting.hpp) have in common: the keys, where an error happened, and the verdict,
// which tells in the store why a meeting failed.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/failure/verdict.hpp"

namespace ddp::core {

constexpr std::chrono::seconds kAskStore{2};  // beside the deadline, for what only makes an error better

constexpr const char* kLimitsAdvice = "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses";

std::string here_key(const MeetingPlace& place, int rank);

// Holds the CoordinatorEndpoint of a leader. Empty if the meeting has failed; then the verdict says why.
std::string endpoint_key(const MeetingPlace& place, int leader);

std::string verdict_key(const MeetingPlace& place);
std::string verdict_count_key(const MeetingPlace& place);  // a number: above 0 once the verdict is there

// In the store: one field a line.
struct CoordinatorEndpoint {
  std::string socket;    // name of the unix socket
  std::string identity;  // host_identity() behind it; this and the rest only of rank 0
  std::string secret;    // that connections between hosts open with
  Endpoint tcp;
};
std::string encode(const CoordinatorEndpoint& endpoint);
CoordinatorEndpoint decode_endpoint(const std::string& text);

// The file that the ranks of a host share; empty if `make` is.
base::UniqueFd shared_file_of(const MakeSharedFile& make, const HostLayout& layout, int host);

// A file that tells the layout of a group to another process of this host. Throw std::system_error.
base::UniqueFd make_layout_file(const HostLayout& layout);
HostLayout read_layout_file(int file, int size);

std::string where(const process_group::GroupMember& who);

// missing: empty if it is not known which ranks did not join.
[[noreturn]] void throw_did_not_join(const process_group::GroupMember& who, const std::vector<int>& missing,
                                     const base::Deadline& deadline);

// Tells the ranks that connect to any of `leaders`, now or later, why the group does not start. An error in telling
// them is ignored: this rank's own error matters more.
void publish_verdict(const MeetingPlace& place, const std::vector<int>& leaders, const std::exception& error);
std::optional<Verdict> read_verdict(const MeetingPlace& place);

}  // namespace ddp::core
