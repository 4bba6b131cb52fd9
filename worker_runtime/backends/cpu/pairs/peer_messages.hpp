// Messages between ranks of different hosts, over the connections of PeerLinks.
//
// All calls of one run() make progress together; for each peer, one send and one receive at a time. PairTransfers says
// which receive takes which message.
//
// A peer may take long to read a message. A connection with data on its way is given up only when the group has found
// that the host of the peer is silent.
//
// Threads: run() and receive_from_any() one at a time; wake() and close() from any.
// Fork:    a forked child has none of the connections.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_transfers.hpp"
#include "worker_runtime/backends/cpu/pairs/peer_links.hpp"

namespace ddp::cpu_backend {

class PeerMessages {
 public:
  struct Questions {
    std::function<bool()> must_stop;           // asked after each wake()
    std::function<bool(int rank)> is_cut_off;  // the host of the rank is silent; asked now and then
    // Waits until `end` for what the host of the rank reports of the end of the rank. Asks is_over() after each wake(),
    // and stops waiting if that is true.
    std::function<std::optional<Presence>(int rank, std::chrono::steady_clock::time_point end,
                                          const std::function<bool()>& is_over)>
        await_end;
  };

  // As PeerLinks. Throws std::system_error.
  PeerMessages(int rank, int size, const NetworkOptions& network, const std::string& group, Questions questions);
  ~PeerMessages();

  PeerLinks& links() { return links_; }
  const PeerLinks& links() const { return links_; }

  // Sends and receives. The peers are on other hosts, and both they and this rank have listeners.
  PairEnd run(std::span<const Collective> calls, base::Deadline& deadline);
  // Receives a message from any of these peers. Completes without a peer if the other half has taken the first message.
  PairEnd receive_from_any(const Collective& call, std::span<const int> peers, FirstMessage& first,
                           base::Deadline& deadline);
  void wake();

  // Ends the run that is under way, and closes the links.
  void close(Presence how);

 private:
  struct Transfer;
  using Step = TransferStep;
  using Answer = PeerLink::Answer;
  using Post = PeerLink::Post;

  template <class Begin>
  PairEnd run_from(const Begin& begin, base::Deadline& deadline);
  PairEnd run_to_end(base::Deadline& deadline);
  void stop_accepting_if_closed();
  void connect_all(base::Deadline& deadline);
  std::span<const int> peers_of(const Transfer& transfer) const;
  bool advance();
  Step step_send(Transfer& transfer);
  Step step_receive(std::size_t at);
  Step look_for_message(std::size_t at, int peer);
  Step look_everywhere(std::size_t at);
  Step send_answer(Transfer& transfer);
  void end_if_peer_is_lost(std::size_t call);
  void end_with_loss(std::size_t call, int peer);
  bool has_left(int peer);
  void check_deadline_and_accept(base::Deadline& deadline);
  bool find_cut_off();
  void wait(base::Deadline& deadline);

  Questions questions_;
  PeerLinks links_;
  std::mutex run_mutex_;  // held by run(), receive_from_any() and PeerLinks::stop_accepting()
  PairTransfers<Transfer> transfers_;
  std::span<const int> any_peers_;  // of a receive from any
  std::vector<pollfd> polled_;
};

}  // namespace ddp::cpu_backend
