// What the two sides of a meeting (meeting.hpp) have in common: the keys, where an error happened, and the verdict,
// which tells in the store why a meeting failed.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/backends/cpu/meeting/meeting.hpp"

namespace ddp::cpu_backend {

constexpr std::chrono::seconds kAskStore{2};  // beside the deadline, for what only makes an error better

constexpr const char* kMissingAdvice =
    "\ntry:   look at the output of the missing ranks; a longer InitOptions::timeout helps where they only start late";
constexpr const char* kLimitsAdvice = "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses";

std::string here_key(const MeetingPlace& place, int rank);

// Holds what a leader's door is like (see Door); nothing where the meeting has failed, and the verdict says why.
std::string door_key(const MeetingPlace& place, int leader);

std::string verdict_key(const MeetingPlace& place);

// As it stands in the store: one word a line.
struct Door {
  std::string socket;    // name of the unix socket
  std::string identity;  // host_identity() behind it; this and the rest only of rank 0
  std::string secret;    // that connections between hosts open with
  Endpoint endpoint;
};
std::string encode(const Door& door);
Door decode_door(const std::string& text);

std::string where(const process_group::Membership& who);
std::string missing_text(const std::vector<int>& missing, const io::Deadline& deadline);

// Tells guests, present and late, of all doors in `leaders`. This rank's own error matters more than one in telling it.
void publish_verdict(const MeetingPlace& place, const std::vector<int>& leaders, const std::exception& error);
std::optional<std::string> read_verdict(const MeetingPlace& place);
[[noreturn]] void throw_verdict(const std::string& verdict);

}  // namespace ddp::cpu_backend
