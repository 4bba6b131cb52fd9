// What the leaders of hosts tell each other of ranks in trouble, and of ranks that have not come to a call.
//
// Only the leader of a host among several has links. On every other rank the object is inactive.
//
// Threads: any, once begin() has returned. The links' own thread takes in the news and answers questions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/rank_states.hpp"
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"

namespace ddp::cpu_backend {

class HostNews {
 public:
  HostNews(const Members& members, Arrivals& arrivals, const RankStates& states)
      : members_(members), arrivals_(arrivals), states_(states) {}

  // Makes this rank's host known to the others. `heard` is called after each news. Throws std::system_error.
  void begin(std::vector<core::LinkSockets> sockets, std::function<void()> heard);

  // Ends the links and their thread. Nothing may be called afterwards.
  void end();

  bool is_active() const { return links_.has_value(); }
  HostStreams& streams() { return links_->streams(); }

  // Tells how a wait ended that failed. This and the next two do nothing on a rank that is not active.
  void tell(const Outcome& outcome);

  // Tells that the process of a rank of this host has ended.
  void tell_end_of(std::size_t index);

  // Tells how this rank leaves the group, and ends waits for other leaders.
  void say_farewell(Presence how);

  // Between these two this leader waits for other hosts in its present call.
  void begin_exchange() { exchanged_call_.store(arrivals_.posts().own_call()); }
  void end_exchange() { exchanged_call_.store(0); }

  // This rank has done its part of its present call.
  void finish_call() { finished_call_.store(arrivals_.posts().own_call()); }

  // Ranks of other hosts that have not come to the present call, as far as their leaders have told.
  std::vector<int> missing_elsewhere() const;

  // The rest requires an active rank.

  // Asks the other leaders which of their ranks have not come to the present call, and notes these ranks. All ranks of
  // a host that does not answer are noted too.
  void ask();

  // What a wait for the hosts `awaited` has come to, once its time is over.
  Outcome find_missing(const std::vector<int>& awaited);

  // The same outcome. If the wait timed out, it names the missing ranks of all other hosts.
  Outcome with_all_missing(const Outcome& outcome);

  // Waits for the last news of a host whose leader is gone. Returns why that ends a wait.
  Outcome failure_without(int host);

 private:
  std::vector<RankNews> missing_here(std::uint64_t call) const;

  const Members& members_;
  Arrivals& arrivals_;
  const RankStates& states_;
  std::atomic<std::uint64_t> exchanged_call_{0};  // the call in which this leader waits for other hosts; 0: in none
  std::atomic<std::uint64_t> finished_call_{0};   // the last one that this rank has finished
  std::optional<HostLinks> links_;                // last: its thread uses the rest
};

}  // namespace ddp::cpu_backend
