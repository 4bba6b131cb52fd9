// What the agent and its guardian say to each other, over a SOCK_SEQPACKET socket pair: one packet a message. Both ends
// are one binary and one fork, so packets are plain structs in memory order and carry no version.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::launcher::guardian {

enum class RequestKind : int {
  spawn,           // local_rank; variables; descriptors: stdin, stdout, stderr, and the socket to its agent
  signal_tree,     // signal_number to every process of every worker but those whose local ranks are the variables
  forward_signal,  // signal_number to every worker that has a handler for it
  signal_worker,   // local_rank; signal_number to it and its descendants
  kill_worker,     // local_rank; SIGKILL to the same
  kill_orphans,    // SIGKILL to descendants whose worker has ended, again until none is left
  kill_tree,       // SIGKILL to all, again until none is left
  set_farewell,    // variables: node key, then an address and a port of each that is told
};

struct Request {
  RequestKind kind = RequestKind::spawn;
  int local_rank = 0;
  int signal_number = 0;
  std::vector<std::string> variables;  // of spawn: "NAME=value", beside the environment that the guardian inherited
};

// What is told to the job's membership once ddprun and every process of the job are gone here.
struct Farewell {
  std::string node_key;
  struct Target {
    std::string address;  // a numeric one
    std::uint16_t port = 0;
  };
  std::vector<Target> to{};  // who serves membership; where this node does, those that would serve it next
  int signal_number = 0;     // that killed ddprun; 0: not known
};

enum class ReportKind : int {
  spawned,       // local_rank, pid, value: 1 where the packet's next descriptor is a pidfd of it, else 0
  not_spawned,   // local_rank, value: errno of exec
  ended,         // local_rank, pid, value: wait status
  tree_empty,    // no process of any worker is left
  signalled,     // a signal_tree was carried out
  forwarded,     // a forward_signal was carried out; value: how many workers got it
  orphans_gone,  // a kill_orphans was carried out
};

struct Report {
  ReportKind kind = ReportKind::tree_empty;
  int local_rank = 0;
  pid_t pid = 0;
  int value = 0;
  bool was_ending = false;              // of ended: when the first failure was seen, and before any signal was sent
  std::optional<bool> out_of_memory{};  // of ended, by SIGKILL: whether the kernel sent it for that; empty: not known
};

constexpr std::size_t kPacketBytesMax = 64 * 1024;
constexpr std::size_t kReportsPerPacketMax = 256;
constexpr std::size_t kDescriptorsPerPacketMax = 64;  // Linux takes 253

// Throws Error where a variable holds a NUL byte: behind it another one would begin, as execve() takes them.
std::vector<char> packet_of(const Request& request);

enum class Sent {
  done,
  no_room,               // poll tells when there is room
  too_many_descriptors,  // on their way; nothing tells when the other side has taken some
  failed,                // the other side is gone, or the packet is too long
};

// These never wait. The descriptors stay the caller's. False where the reports could not be sent now.
Sent send_request(int socket, std::span<const char> packet, std::span<const int> descriptors);
bool send_reports(int socket, std::span<const Report> reports, std::span<const int> descriptors);

template <class T>
struct Received {
  T content;
  std::vector<base::UniqueFd> descriptors;
};

// Never blocks; empty where no packet is waiting. `closed` becomes true where the other side is gone.
std::optional<Received<Request>> receive_request(int socket, bool& closed);
std::optional<Received<std::vector<Report>>> receive_reports(int socket, bool& closed);

}  // namespace ddp::launcher::guardian
