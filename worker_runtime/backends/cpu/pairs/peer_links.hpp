// The connections of this rank to the ranks of other hosts, over TCP: listening, connecting, accepting and closing.
//
// Every rank has a listener and a secret of its own. The other ranks learn both when the group starts. The connections
// to a rank are made when a call first needs that rank. PeerLink says what is sent on them.
//
// A peer may take long to read a message. So the kernel gives up a silent connection only while no data is on its way;
// with data on its way, the caller asks whether the host of the peer is silent.
//
// Threads: announcement(), wake(), interrupt() and close() from any; the rest one at a time. link_mutex_ guards the
//          sockets of the links, and what is sent on those that peers opened: connect(), accept() and send_answer()
//          hold it against close().
// Fork:    a forked child has none of the connections.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cut.hpp"
#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "worker_runtime/backends/cpu/pairs/peer_link.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"

namespace ddp::cpu_backend {

using core::Acceptor;
using core::NetworkOptions;
using core::RankHello;

class PeerLinks {
 public:
  // Where a rank listens, and the secret that a connection to it begins with.
  using Announcement = std::array<std::uint64_t, 6>;

  // `group` is the same text on all ranks, and differs from that of every other group. `must_stop` is asked after each
  // wake(). If this rank gets no port, the group goes on, and require_listeners() throws. Throws std::system_error.
  PeerLinks(int rank, int size, const NetworkOptions& network, const std::string& group,
            std::function<bool()> must_stop);

  const Announcement& announcement() const { return own_; }
  void learn(int rank, const Announcement& announcement);

  // Throws Error if this rank or the peer has no listener, so that both ranks of a pair refuse the call.
  void require_listeners(int peer) const;

  PeerLink& link(int peer) { return links_[static_cast<std::size_t>(peer)]; }

  // Connects to the peer, if this rank has not yet. Returns whether the peer can be reached. A peer that is alive but
  // busy can be reached, because its kernel accepts the connection. After interrupt() it returns true and does not
  // connect. Throws Error if this process can't open a connection.
  bool connect(int peer, base::Deadline& deadline);

  // Sends as much of the answer to a peer as the socket takes now. After close() it sends nothing.
  // Returns false if the connection is lost.
  bool send_answer(int peer, PendingBytes& answer);

  // Waits for the farewell of a peer that has closed a connection: a peer sends it on one of its connections, and it
  // may come later than the end of the other. Returns without one if the other connection ends too, after kAnswerMax,
  // or when this rank must stop.
  void await_farewell(int peer);

  // Accepts the peers that have connected. Throws Error if this process can't accept a connection.
  void accept_pending();

  // Waits until one of `polled` is ready, a peer connects, wake() is called or the deadline passes. Accepts the peers
  // that have connected, as accept_pending(). Adds entries to `polled`.
  void wait(std::vector<pollfd>& polled, const base::Deadline& deadline);
  void wake();

  // Ends connect() and wait(), now and later.
  void interrupt();

  // Sends a farewell to the peers that are connected, and to those that are accepted from here on. Any thread.
  void close(Presence how);
  bool is_closed() const;

  // After close(): accepts the peers that connected while this rank was busy, so that they get the farewell too, and
  // ends all other connections. From here on no peer reaches this rank.
  void stop_accepting();

 private:
  void accept(std::span<const pollfd> polled);

  RankHello hello_;  // of this rank, without the secret
  std::function<bool()> must_stop_;
  std::string store_address_;
  std::string no_listener_;  // why this rank has none
  Announcement own_{};
  std::vector<Announcement> announced_;  // by rank
  std::vector<PeerLink> links_;          // by rank
  std::optional<Acceptor> acceptor_;
  mutable std::mutex link_mutex_;
  std::optional<Presence> closed_as_;  // guarded by link_mutex_
  base::UniqueFd wake_;                // an eventfd
  base::Cut cut_;                      // by interrupt()
  std::vector<pollfd> polled_;
};

}  // namespace ddp::cpu_backend
