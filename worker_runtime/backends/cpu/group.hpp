// A group of the cpu backend: the ranks of one host or of several, what they share, and how a call goes.
//
//   group.cpp          start, calls, exchange inside a host
//   group_hosts.cpp    what is added where the ranks are on several hosts
//   group_pairs.cpp    sends and receives
//   group_memory.cpp   memory that all ranks make together
//   group_split.cpp    groups that are made of this one
//   group_failure.cpp  what ends the group, and what is said of it
//
// Threads: one caller at a time; abort() and set_failure_listener() from any. Jobs of the queue run one at a time.
// Fork:    a forked child leaks it, because its threads and mappings are not there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "rendezvous/io/cut.hpp"
#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/arrivals/peer_watch.hpp"
#include "worker_runtime/backends/cpu/communication_queue.hpp"
#include "worker_runtime/backends/cpu/hosts/host_collectives.hpp"
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/bootstrap/sub_meeting.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/collectives.hpp"
#include "worker_runtime/backends/cpu/pairs/peer_links.hpp"
#include "worker_runtime/backends/cpu/pairs/point_to_point.hpp"
#include "worker_runtime/backends/cpu/uneven/uneven_collectives.hpp"
#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_report.hpp"
#include "worker_runtime/core/failure/verdict.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/flight_recorder/quick_clock.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::Cause;
using core::Failure;
using core::Meeting;
using core::NetworkOptions;
using core::NewGroup;
using core::Peer;
using core::RankState;
using core::Verdict;
using flight_recorder::GroupLog;
using flight_recorder::Ticket;
using process_group::AbortCause;
using process_group::Membership;

class Group {
 public:
  // Takes the shared file and maps it. The others are not told where that fails.
  Group(const Membership& who, Meeting& meeting);

  // Once, on all ranks, before any call. Throws, on all of them, where one can't go on.
  void begin(Meeting meeting, io::Deadline& deadline);

  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Several are begun as one: see ProcessGroup::coalesce. At least one.
  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives);
  void run(const Collective& collective);
  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout);

  // As process_group::Backend::split; null for one that is in no new group.
  std::unique_ptr<Group> split(const Membership& of_new, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout);

  void abort(const std::string& reason, AbortCause cause);

  void set_failure_listener(process_group::Backend::FailureListener tell);

  bool has_hosts() const { return layout_.host_count() > 1; }  // several
  bool in_forked_child() const { return memory_->fork_guard().in_forked_child(); }
  void require_own_process() const { memory_->fork_guard().require_own_process(); }

 private:
  class StepsHere;

  // What a job of the queue does when its turn has come.
  template <class Steps>
  void take_turn(io::Deadline& deadline, const Steps& steps);

  void carry_out(std::span<const Collective> collectives, io::Deadline& deadline);
  void execute(std::span<const Collective> collectives, io::Deadline deadline, const Ticket& ticket);
  Ticket record(std::span<const Collective> collectives);
  void require_listeners(std::span<const Collective> calls) const;
  void exchange_in_pairs(std::span<const Collective> calls, io::Deadline& deadline);
  void receive_from_any(const Collective& call, io::Deadline& deadline);
  PairEnd wait_for_any(const Collective& call, io::Deadline& deadline);
  PairEnd wait_for_any_here(const Collective& call, FirstMessage* first, io::Deadline& deadline);
  std::vector<int> ranks_afar() const;

  // Both at once, on two threads. If one does not complete, the other stops.
  struct PairEnds {
    PairEnd here, afar;
    const PairEnd& cause() const;  // the one that did not complete by itself; else `here`
  };
  PairEnds run_here_and_afar(const std::function<PairEnd()>& here, const std::function<PairEnd()>& afar);
  void exchange_here_and_afar(std::span<const Collective> here, std::span<const int> peers,
                              std::span<const Collective> afar, io::Deadline& deadline);
  void open_to_other_hosts(const NetworkOptions& network, io::Deadline& deadline);
  [[noreturn]] void fail_pair(std::span<const Collective> calls, const PairEnd& end, const io::Deadline& deadline);
  void exchange(const Collective& collective, io::Deadline& deadline);
  [[gnu::noinline]] void exchange_unevenly(const Collective& collective, io::Deadline& deadline);
  void exchange_over_hosts(const Collective& collective, io::Deadline& deadline);
  std::shared_ptr<Segment> allocate_segment(std::size_t bytes, io::Deadline& deadline);
  std::shared_ptr<Segment> reserve_staging(std::size_t bytes, io::Deadline& deadline, Gap unused = {});
  std::shared_ptr<Segment> reserve_on_all(std::size_t bytes, io::Deadline& deadline, Gap unused = {});

  // What a rank could not do for an allocation.
  struct Refusal {
    int rank = 0;
    int error = 0;  // an errno
  };
  std::optional<Refusal> first_refusal(std::size_t step, int own_error, io::Deadline& deadline);

  // Finds out whether the ranks of this host can read each other's plain memory.
  void probe_peer_memory(io::Deadline& deadline);

  // Behind all earlier calls.
  void run_in_turn(const Ticket& ticket, const CommunicationQueue::Job& job);

  // One of the calls that are recorded, in its turn.
  template <class Steps>
  void recorded(const Ticket& ticket, const Steps& steps);

  // A call whose turn comes as it is made. What is to be noted down of it waits until this rank has arrived, while its
  // arrival is on its way to the others.
  struct Opening {
    const Collective& collective;
    io::Deadline deadline;
  };
  void run_at_once(const Collective& collective);
  void note_down_opening();

  // An error in these steps ends the group: it is given up with the error's message, and what the flight recorder has
  // is written to a file, which the message then names.
  template <class Steps>
  void guarded(const Steps& steps);
  std::string give_up_for(const Error& error);

  void meet(io::Deadline& deadline);  // both of these
  void arrive(const io::Deadline& deadline);
  void wait_for_all(io::Deadline& deadline);
  [[noreturn]] void fail(const Outcome& outcome, const io::Deadline& deadline);
  void require_same_calls(const std::vector<Fingerprint>& calls) const;

  // With several hosts. After a meet() of the host's ranks: words_of(i) of its rank i reach all ranks of the group.
  std::span<const GatheredWords> gather(const std::function<GatheredWords(int index)>& words_of,
                                        io::Deadline& deadline);
  HostCollectives::Steps steps_over_hosts(io::Deadline& deadline, bool is_monitored = false);
  void require_same_calls_over_hosts(const Collective* collective, const std::vector<Fingerprint>& here,
                                     const HostCollectives::Steps& steps);
  void meet_or_name_all(io::Deadline& deadline);
  void ask_other_hosts();
  void meet_after_leaders(io::Deadline& deadline);
  void among_leaders(const HostCollectives::AmongLeaders& exchange, io::Deadline& deadline, bool is_monitored = false);
  io::Deadline earliest_deadline(const io::Deadline& own) const;
  void tell_of_end(std::size_t index);
  void post_deadline(const io::Deadline& deadline);
  Outcome ask_who_is_missing(const std::vector<int>& awaited);
  Outcome with_all_missing(const Outcome& outcome);
  std::vector<int> missing_elsewhere() const;
  RankNews news_of(int rank, Trouble trouble) const;
  std::vector<RankNews> missing_here(std::uint64_t call) const;

  std::unique_ptr<Group> split_in_turn(const NewGroup& made, io::Deadline& deadline);

  void cut_waits() {
    if (failure_cut_) failure_cut_->cut("the process group that is split is of no further use");
  }

  bool give_up(Presence how, Verdict why);
  bool is_given_up() const { return given_up_.load(std::memory_order_acquire); }
  void tell_failure(const std::string& reason);
  void require_usable() const;
  [[noreturn]] void throw_unusable() const;

  core::FailedGroup failed_group() const;
  Failure failure_in_present_call(Cause cause) const;
  [[noreturn]] void throw_timeout(std::span<const int> missing, const io::Deadline& deadline) const;
  RankState state_of(int rank) const;
  RankState state_after(const PairEnd& end, int peer) const;
  bool is_cut_off(int rank) const;
  std::vector<core::RankReport> reports_of(std::span<const int> ranks) const;
  bool all_have(Presence presence, const std::vector<int>& ranks) const;

  Membership who_;
  GroupLog log_;
  flight_recorder::QuickClock clock_;  // the jobs'
  HostLayout layout_;
  int index_;              // among the ranks of this host
  std::vector<int> pids_;  // by rank of the group; 0 where it is not known
  NetworkOptions network_;
  std::vector<int> job_ranks_;  // of the whole job, by rank
  std::shared_ptr<SharedMemory> memory_;
  PeerMemory peer_memory_;
  Arrivals arrivals_;
  PointToPoint pairs_;                               // with ranks of this host
  std::optional<PeerLinks> peer_links_;              // with those of others
  std::atomic<bool> is_pair_over_{false};            // while both are at work: one of them has failed
  std::optional<Collectives> collectives_;           // with one host
  std::optional<HostCollectives> host_collectives_;  // with several
  std::shared_ptr<CommunicationQueue> queue_ = std::make_shared<CommunicationQueue>();
  std::optional<io::Deadline::TimePoint> stopped_at_;  // the jobs'; when a wait last found that the process was stopped
  std::optional<Ticket> in_turn_;                      // the jobs'; the call that is being carried out
  Opening* opening_ = nullptr;                         // the jobs'; of that call, as long as it is not noted down
  bool has_joined_ = false;                            // the jobs'; that call: the others have seen this rank in it
  bool is_late_ = false;                               // the jobs'; they had given it up before
  bool is_abort_elsewhere_ = false;                    // the jobs'; what went wrong is another rank's abort()
  std::atomic<std::uint64_t> exchanged_call_{0};       // the call in which this leader waits for other hosts, or none
  std::atomic<std::uint64_t> finished_call_{0};        // over hosts, that this rank has got through last
  std::atomic<bool> given_up_{false};
  mutable std::mutex reason_mutex_;
  Verdict reason_;                                    // guarded by reason_mutex_; why it was given up
  std::mutex listener_mutex_;                         // held while the listener is called
  process_group::Backend::FailureListener listener_;  // guarded by listener_mutex_, as is the next; empty once told
  std::optional<std::string> failure_;                // what a collective ended the group with
  std::optional<io::Cut> failure_cut_;                // ends the waits of a split that are not this group's own
  std::optional<HostLinks> links_;                    // a leader's; its thread calls arrivals_
  std::optional<PeerWatch> watch_;                    // the last member: its thread calls arrivals_ and links_
};

template <class Steps>
void Group::take_turn(io::Deadline& deadline, const Steps& steps) {
  deadline.begin(std::chrono::steady_clock::now(), stopped_at_);
  steps();
  if (deadline.stopped_at()) stopped_at_ = deadline.stopped_at();
}

template <class Steps>
void Group::recorded(const Ticket& ticket, const Steps& steps) {
  if (is_given_up()) {
    log_.refuse(ticket);
    throw_unusable();
  }
  log_.start(ticket);
  in_turn_ = ticket;
  has_joined_ = false;
  try {
    steps();
  } catch (...) {
    log_.fail(ticket);  // unless that has been said
    in_turn_.reset();
    throw;
  }
  in_turn_.reset();
  log_.complete(ticket);
}

template <class Steps>
void Group::guarded(const Steps& steps) {
  try {
    steps();
  } catch (const RankFailure& error) {
    throw RankFailure(give_up_for(error), error.ranks());
  } catch (const TimeoutError& error) {
    throw TimeoutError(give_up_for(error), error.ranks());
  } catch (const MismatchError& error) {
    throw MismatchError(give_up_for(error));
  } catch (const std::exception& error) {
    if (give_up(Presence::gave_up, core::verdict_of(error))) tell_failure(error.what());
    throw;
  }
}

}  // namespace ddp::cpu_backend
