// The connections of a host's leader to the leaders of the other hosts, while the group makes them (meeting.hpp). A
// leader connects to those of the hosts before its own, and the others connect to it.
//
// Threads: one caller at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

class LeaderLinks {
 public:
  // Makes room for the links at once: other leaders may connect before this one has received their endpoints.
  LeaderLinks(const process_group::GroupMember& who, const HostLayout& layout);

  // Takes the connection in that another leader has opened; closes one of any other rank.
  void add(Acceptor::Arrival& arrival);

  // Connects to the leaders of the hosts before this one. `endpoints`: by host. Throws RankFailure for a leader that
  // can't be reached.
  void connect(const std::vector<Endpoint>& endpoints, const MeetingPlace& place, const std::string& secret,
               base::Deadline& deadline);

  bool are_complete() const;

  // By host; empty if there is only one.
  std::vector<LinkSockets> take() { return std::move(links_); }

 private:
  [[noreturn]] void fail_to_connect(int host, const Endpoint& endpoint, const std::string& why) const;

  process_group::GroupMember who_;
  HostLayout layout_;
  int own_host_;
  std::vector<LinkSockets> links_;  // by host
};

}  // namespace ddp::core
