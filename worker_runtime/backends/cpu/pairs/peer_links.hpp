// Messages between ranks of different hosts, over TCP.
//
// Every rank has a listener and a secret of its own, which the others learn when the group starts. Between two ranks
// there are two connections, made when one first needs the other: each opens one to the other, and sends on that one
// alone. The receiver's answers come back on it, so that no message waits behind another's data; and a rank that waits,
// be it for a message from a peer that has never called, notices by its own connection that the peer is gone.
//
// On a connection a message is a Post and its data; it is complete with the receiver's Answer. The last word of a rank
// that leaves is an Answer too. A message whose tag is not that of the receive that finds it is for a later receive
// of the same run(), or is kept (KeptMessages). All calls of one run() make progress together, of each peer one send
// and one receive at a time.
//
// A peer may take long to read a message, so a connection with data on its way is given up only when the group has
// found that the peer's host is silent.
//
// Threads: run() one at a time; wake() and close() from any.
// Fork:    a forked child has none of the connections.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
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
#include "worker_runtime/backends/cpu/pairs/kept_messages.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"

namespace ddp::cpu_backend {

using core::Acceptor;
using core::Hello;
using core::NetworkOptions;

class PeerLinks {
 public:
  // Where a rank listens, and the secret that a connection to it opens with.
  using Announcement = std::array<std::uint64_t, 6>;

  struct Questions {
    std::function<bool()> must_stop;           // asked after each wake()
    std::function<bool(int rank)> is_cut_off;  // its host has gone silent; asked every now and then
    // Waits until `end` for what its host tells of its end. After each wake() it asks whether the wait is over.
    std::function<std::optional<Presence>(int rank, std::chrono::steady_clock::time_point end,
                                          const std::function<bool()>& is_over)>
        await_end;
  };

  // `group` is the same text on all ranks, and no other group's. Where no port can be had, only the calls that would
  // need it are refused. Throws std::system_error.
  PeerLinks(int rank, int size, const NetworkOptions& network, const std::string& group, Questions questions);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  const Announcement& announcement() const { return own_; }
  void learn(int rank, const Announcement& announcement);

  // Throws Error where this rank or the peer has none: both sides of a pair come to the same conclusion.
  void require_listeners(int peer) const;

  // Sends, and receives, of ranks on other hosts, which have listeners, as this one has.
  PairEnd run(std::span<const Collective> calls, base::Deadline& deadline);
  // A message of any of these. Ends without a peer when the other side has taken the first.
  PairEnd receive_from_any(const Collective& call, std::span<const int> peers, FirstMessage& first,
                           base::Deadline& deadline);
  void wake();

  // Says farewell to those who are connected. Nobody reaches this rank from here on.
  void close(Presence how);

 private:
  struct Link;
  struct Transfer;
  struct Post;
  struct Answer;
  enum class Step : std::uint8_t { idle, moved, complete, mismatch, lost };

  PairEnd run_to_end(std::span<const Collective> calls, base::Deadline& deadline);
  void begin(std::span<const Collective> calls);
  std::span<const int> peers_of(const Transfer& transfer) const;
  bool connect(int peer, base::Deadline& deadline);
  bool has_left(int peer);
  bool advance();
  Step step_send(Transfer& transfer, Link& link);
  Step step_receive(std::size_t at);
  Step look_for_message(std::size_t at, int peer);
  Step look_everywhere(std::size_t at);
  Step take_kept(Transfer& transfer, const KeptMessages::Message& message);
  bool prepare_to_keep(Transfer& transfer, int peer, const Fingerprint& sent);
  void keep(Transfer& transfer);
  void end_by_lost_peer(std::size_t call);
  Step give_answer(Transfer& transfer, Link& link);
  bool send_rest(Transfer& transfer, int socket);
  bool hear_answers(Link& link);
  void hear_farewell(Link& link);
  void take_in(std::span<const pollfd> polled);
  void take_in_at_once();
  void take_in_late();
  void look_up(base::Deadline& deadline);
  bool find_cut_off();
  void wait(base::Deadline& deadline);
  void end_with(PairEnd::Kind kind, std::size_t call, int peer);
  void end_waiting(PairEnd::Kind kind);
  Link& link_to(int peer);

  int rank_;
  Questions questions_;
  Hello hello_;  // but for the secret
  std::string store_address_;
  std::string no_listener_;  // why
  Announcement own_{};
  std::vector<Announcement> announced_;  // by rank
  std::vector<Link> links_;              // by rank
  std::optional<Acceptor> acceptor_;
  int listener_ = -1;
  std::mutex run_mutex_;    // held by run()
  std::mutex link_mutex_;   // sockets, and what is said on those that others opened
  bool is_closed_ = false;  // guarded by link_mutex_
  KeptMessages kept_;       // run()'s
  base::UniqueFd wake_;     // an eventfd
  base::Cut cut_;           // by close()

  // Of the present run().
  PairOrder order_;
  std::span<const int> any_peers_;  // of a receive from any, as the next
  FirstMessage* first_ = nullptr;
  std::vector<Transfer> transfers_;
  std::vector<pollfd> polled_;
  std::optional<PairEnd> end_;
};

}  // namespace ddp::cpu_backend
