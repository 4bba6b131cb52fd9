#include "worker_runtime/cpu_backend/cpu_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "rendezvous/io/cut.hpp"
#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/cpu_backend/arrivals.hpp"
#include "worker_runtime/cpu_backend/collectives.hpp"
#include "worker_runtime/cpu_backend/communication_queue.hpp"
#include "worker_runtime/cpu_backend/failure_message.hpp"
#include "worker_runtime/cpu_backend/host_collectives.hpp"
#include "worker_runtime/cpu_backend/host_links.hpp"
#include "worker_runtime/cpu_backend/peer_watch.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::cpu_backend {

namespace {

using flight_recorder::GroupLog;
using flight_recorder::Ticket;
using process_group::AbortCause;
using process_group::Membership;

// Everything of a group; a forked child leaks it, because its threads and mappings are not there.
class Group {
 public:
  Group(const Membership& who, Meeting meeting, io::Deadline& deadline);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::shared_ptr<Work::State> submit(const Collective& collective);
  void run(const Collective& collective);
  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout);
  void abort(const std::string& reason, AbortCause cause) {
    const bool is_round_over = cause == AbortCause::round_over;
    give_up(Presence::aborted, is_round_over ? reason : "it was aborted: " + reason, is_round_over);
  }

  void set_failure_listener(process_group::Backend::FailureListener tell);

  bool in_forked_child() const { return memory_->fork_guard().in_forked_child(); }
  void require_own_process() const { memory_->fork_guard().require_own_process(); }

 private:
  // What a job of the queue does when its turn has come.
  template <class Steps>
  void take_turn(io::Deadline& deadline, const Steps& steps);

  void execute(const Collective& collective, io::Deadline deadline, const Ticket& ticket);
  void exchange(const Collective& collective, io::Deadline& deadline);
  void exchange_over_hosts(const Collective& collective, const std::optional<Placement>& placement,
                           io::Deadline& deadline);
  std::shared_ptr<Segment> allocate_segment(std::size_t bytes, io::Deadline& deadline);
  std::shared_ptr<Segment> reserve_on_all(std::size_t bytes, io::Deadline& deadline);

  // What a rank could not do for an allocation.
  struct Refusal {
    int rank = 0;
    int error = 0;  // an errno
  };
  std::optional<Refusal> first_refusal(std::size_t step, int own_error, io::Deadline& deadline);

  // One of the calls that are recorded, in its turn.
  template <class Steps>
  void recorded(const Ticket& ticket, const Steps& steps);

  // An error in these steps ends the group: it is given up with the error's message, and what the flight recorder has is
  // written to a file, which the message then names.
  template <class Steps>
  void guarded(const Steps& steps);
  std::string give_up_for(const Error& error);

  void meet(io::Deadline& deadline);
  [[noreturn]] void fail(const Outcome& outcome, const io::Deadline& deadline);
  void require_same_calls(const std::vector<Fingerprint>& calls) const;

  // With several hosts. After a meet() of the host's ranks: words_of(i) of its rank i reach all ranks of the group.
  bool has_hosts() const { return layout_.host_count() > 1; }
  std::span<const GatheredWords> gather(const std::function<GatheredWords(int index)>& words_of,
                                        io::Deadline& deadline);
  std::vector<Fingerprint> calls_of_all(io::Deadline& deadline);
  void meet_after_leaders(io::Deadline& deadline);
  void transfer(std::span<const HostLinks::Parcel> parcels, io::Deadline& deadline);
  io::Deadline earliest_deadline(const io::Deadline& own) const;
  void post_deadline(const io::Deadline& deadline);
  Outcome ask_who_is_missing(const std::vector<int>& hosts);
  RankNews news_of(int rank, Trouble trouble) const;
  std::vector<RankNews> missing_here(std::uint64_t call) const;

  bool give_up(Presence how, const std::string& reason, bool is_round_over = false);
  bool is_given_up() const { return given_up_.load(std::memory_order_acquire); }
  void tell_failure(const std::string& reason);
  void require_usable() const;
  [[noreturn]] void throw_unusable() const;

  FailedCall present_call() const;
  RankState state_of(int rank) const;
  std::vector<RankState> states_of(const std::vector<int>& ranks) const;
  bool all_have(Presence presence, const std::vector<int>& ranks) const;

  Membership who_;
  GroupLog log_;
  HostLayout layout_;
  int index_;              // among the ranks of this host
  std::vector<int> pids_;  // by rank of the group; 0 where it is not known
  std::shared_ptr<SharedMemory> memory_;
  Arrivals arrivals_;
  std::optional<Collectives> collectives_;           // with one host
  std::optional<HostCollectives> host_collectives_;  // with several
  std::shared_ptr<CommunicationQueue> queue_ = std::make_shared<CommunicationQueue>();
  std::optional<io::Deadline::TimePoint> stopped_at_;  // the jobs'; when a wait last found that the process was stopped
  std::optional<Ticket> in_turn_;                      // the jobs'; the call that is being carried out
  bool has_joined_ = false;                            // the jobs'; that call: the others have seen this rank in it
  bool is_late_ = false;                               // the jobs'; they had given it up before
  bool is_abort_elsewhere_ = false;                    // the jobs'; what went wrong is another rank's abort()
  std::atomic<bool> given_up_{false};
  std::atomic<bool> is_round_over_{false};
  mutable std::mutex reason_mutex_;
  std::string reason_;              // guarded by reason_mutex_; why it was given up
  std::mutex listener_mutex_;       // held while the listener is called
  process_group::Backend::FailureListener listener_;  // guarded by listener_mutex_, as is the next; empty once told
  std::optional<std::string> failure_;                // what a collective ended the group with
  std::optional<HostLinks> links_;  // a leader's; its thread calls arrivals_
  std::optional<PeerWatch> watch_;  // the last member: its thread calls arrivals_ and links_
};

std::vector<int> pids_of(const Meeting& meeting, int host) {
  std::vector<int> pids(static_cast<std::size_t>(meeting.layout.size()));
  for (std::size_t index = 0; index < meeting.peers.size(); ++index) {
    pids[static_cast<std::size_t>(meeting.layout.ranks_of(host)[index])] = meeting.peers[index].pid;
  }
  return pids;
}

std::vector<io::UniqueFd> pidfds_of(std::vector<Peer> peers) {
  std::vector<io::UniqueFd> pidfds;
  for (Peer& peer : peers) pidfds.push_back(std::move(peer.pidfd));
  return pidfds;
}

[[noreturn]] void refuse_missing(const std::string& what) {
  throw InvalidArgument("the cpu backend has no " + what +
                        " yet\ntry:   the collectives that it has (ddp/process_group.hpp)");
}

void require_known(const Collective& collective) {
  switch (collective.kind) {
    case CollectiveKind::barrier:
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::allocate: return;
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
    case CollectiveKind::all_to_all:
    case CollectiveKind::send:
    case CollectiveKind::receive: refuse_missing(name_of(collective.kind));
  }
}

flight_recorder::GroupFacts facts_of(const Membership& who) {
  std::vector<int> ranks(static_cast<std::size_t>(who.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {.backend = "cpu",
          .name = who.name.empty() ? "group" : who.name,
          .description = "all ranks",
          .round = who.round,
          .ranks = std::move(ranks),
          .rank = who.rank};
}

// All that a collective does among one.
void copy_to_output(const Collective& collective) {
  const std::size_t bytes = collective.output.bytes();
  if (bytes > 0 && collective.input.data != collective.output.data) {
    std::memcpy(collective.output.data, collective.input.data, bytes);
  }
}

Group::Group(const Membership& who, Meeting meeting, io::Deadline& deadline)
    : who_(who),
      log_(facts_of(who)),
      layout_(meeting.layout),
      index_(layout_.index_of(who.rank)),
      pids_(pids_of(meeting, layout_.host_of(who.rank))),
      memory_(std::make_shared<SharedMemory>(std::move(meeting.shared_file), layout_, who.rank)),
      arrivals_(memory_->control(), index_, layout_.ranks_of(layout_.host_of(who.rank)), memory_->notes()) {
  // The others are waiting from here on. (One that can't even map the memory has no way to tell them: they notice its
  // end, or time out.)
  const io::Cut::Waker waker(deadline.cut(), [this] { arrivals_.interrupt(); });
  guarded([&] {
    if (!meeting.links.empty()) {
      links_.emplace(
          layout_, layout_.host_of(who.rank), std::move(meeting.links),
          [this](const RankNews& news) {
            const RankState state{news.rank, news.pid, news.presence, news.calls, decode(news.last_call)};
            arrivals_.note(news.rank, state, news.trouble);
          },
          [this](std::uint64_t call) { return missing_here(call); });
    }
    if (meeting.peers.size() > 1) {
      watch_.emplace(pidfds_of(std::move(meeting.peers)), [this](int index) {
        arrivals_.lose(index);
        const int rank = layout_.ranks_of(layout_.host_of(who_.rank))[static_cast<std::size_t>(index)];
        if (links_) links_->tell(news_of(rank, Trouble::lost));
      });
    }
    post_deadline(deadline);
    if (!has_hosts()) {
      collectives_.emplace(who_.rank, who_.size, reserve_on_all(staging_bytes(who_.size), deadline));
      return;
    }
    meet(deadline);
    const auto& here = layout_.ranks_of(layout_.host_of(who_.rank));
    const auto pids = gather(
        [&](int index) -> GatheredWords {
          const int rank = here[static_cast<std::size_t>(index)];
          return {static_cast<std::uint64_t>(pids_[static_cast<std::size_t>(rank)])};
        },
        deadline);
    for (int rank = 0; rank < who_.size; ++rank) {
      const bool is_known = layout_.host_of(rank) == layout_.host_of(who_.rank);  // and the threads may read it now
      if (!is_known) pids_[static_cast<std::size_t>(rank)] = static_cast<int>(pids[layout_.place_of(rank)][0]);
    }
    host_collectives_.emplace(layout_, who_.rank, reserve_on_all(HostCollectives::staging_bytes(who_.size), deadline));
  });
}

Group::~Group() {
  give_up(Presence::left, "it was destroyed");
  queue_->stop();
}

std::shared_ptr<Work::State> Group::submit(const Collective& collective) {
  const io::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::operation_of(collective));
  try {
    return queue_->submit([this, collective, deadline, ticket] { execute(collective, deadline, ticket); });
  } catch (...) {
    log_.refuse(ticket);
    throw;
  }
}

void Group::run(const Collective& collective) {
  const io::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::operation_of(collective));
  queue_->run([&] { execute(collective, deadline, ticket); });
}

RegisteredMemory Group::allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
  io::Deadline deadline = process_group::deadline_after(timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::allocation_of(bytes, timeout));
  std::shared_ptr<Segment> segment;
  queue_->run([&] {
    recorded(ticket, [&] { take_turn(deadline, [&] { segment = allocate_segment(bytes, deadline); }); });
  });
  void* const data = segment->own_part();
  return {std::shared_ptr<void>(std::move(segment), data), bytes, {}};
}

template <class Steps>
void Group::take_turn(io::Deadline& deadline, const Steps& steps) {
  deadline.begin(std::chrono::steady_clock::now(), stopped_at_);
  steps();
  if (deadline.stopped_at()) stopped_at_ = deadline.stopped_at();
}

void Group::execute(const Collective& collective, io::Deadline deadline, const Ticket& ticket) {
  recorded(ticket, [&] {
    if (who_.size == 1) return copy_to_output(collective);
    take_turn(deadline, [&] { guarded([&] { exchange(collective, deadline); }); });
  });
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
    if (give_up(Presence::gave_up, error.what())) tell_failure(error.what());
    throw;
  }
}

// The others first: writing a file takes its time.
std::string Group::give_up_for(const Error& error) {
  if (give_up(Presence::gave_up, error.what())) tell_failure(error.what());
  if (in_turn_) is_late_ ? log_.refuse(*in_turn_) : log_.fail(*in_turn_);
  return is_abort_elsewhere_ ? error.what() : error.what() + log_.write_failure(error.what());
}

void Group::exchange(const Collective& collective, io::Deadline& deadline) {
  const ConstMemoryRange memory = Collectives::memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_->find(memory.data, memory.bytes()) : std::nullopt;
  Fingerprint call = fingerprint_of(collective);
  if (placement) call.location = placement->location;

  arrivals_.post(call);
  if (has_hosts()) return exchange_over_hosts(collective, placement, deadline);
  if (!placement) collectives_->stage_first_block(collective);
  meet(deadline);
  const std::vector<Fingerprint>& calls = arrivals_.posted();
  require_same_calls(calls);

  const Collectives::Meet meet_again = [&] { meet(deadline); };
  const auto is_here = [&](const Fingerprint& other) { return other.location == call.location; };
  if (std::all_of(calls.begin(), calls.end(), is_here)) {
    if (placement) return collectives_->run_in_place(collective, *placement, meet_again);
  } else {  // some could have done without staging, and have staged nothing yet
    if (placement) collectives_->stage_first_block(collective);
    meet(deadline);
  }
  collectives_->run_staged(collective, meet_again);
}

void Group::exchange_over_hosts(const Collective& collective, const std::optional<Placement>& placement,
                                io::Deadline& deadline) {
  post_deadline(deadline);
  meet(deadline);
  const std::vector<Fingerprint>& here = arrivals_.posted();
  const bool is_in_place = placement && std::all_of(here.begin(), here.end(), [&](const Fingerprint& call) {
                             return call.location == placement->location;
                           });
  require_same_calls(calls_of_all(deadline));
  host_collectives_->run(collective, is_in_place ? &*placement : nullptr,
                         {.meet = [&] { meet(deadline); },
                          .meet_after_leaders = [&] { meet_after_leaders(deadline); },
                          .transfer = [&](auto parcels) { transfer(parcels, deadline); }});
}

std::vector<Fingerprint> Group::calls_of_all(io::Deadline& deadline) {
  const std::vector<Fingerprint> here = arrivals_.posted();
  const auto all = gather([&](int index) { return encode(here[static_cast<std::size_t>(index)]); }, deadline);
  std::vector<Fingerprint> calls;
  for (int rank = 0; rank < who_.size; ++rank) calls.push_back(decode(all[layout_.place_of(rank)]));
  return calls;
}

// What was gathered stays until the leader gathers again, which it does after another meet().
std::span<const GatheredWords> Group::gather(const std::function<GatheredWords(int index)>& words_of,
                                             io::Deadline& deadline) {
  const std::span<GatheredWords> all = memory_->gathered();
  if (links_) {
    const int own_host = layout_.host_of(who_.rank);
    const auto words_of_host = [&](int host) {
      return std::as_writable_bytes(all.subspan(layout_.first_place(host), layout_.ranks_of(host).size()));
    };
    for (int index = 0; index < static_cast<int>(layout_.ranks_of(own_host).size()); ++index) {
      all[layout_.first_place(own_host) + static_cast<std::size_t>(index)] = words_of(index);
    }
    std::vector<HostLinks::Parcel> parcels;
    for (int host = 0; host < layout_.host_count(); ++host) {
      parcels.push_back({words_of_host(own_host), words_of_host(host)});
    }
    transfer(parcels, deadline);
  }
  meet_after_leaders(deadline);
  return all;
}

void Group::meet_after_leaders(io::Deadline& deadline) {
  arrivals_.arrive();
  const Outcome outcome = arrivals_.wait_for_leader(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

// One exchange with the other leaders. Its deadline is the earliest of this host's ranks, which all are in the call:
// they wait for this one's verdict.
void Group::transfer(std::span<const HostLinks::Parcel> parcels, io::Deadline& deadline) {
  io::Deadline earliest = earliest_deadline(deadline);
  const auto end = links_->transfer(
      parcels, [this] { return arrivals_.failure().has_value(); }, earliest);
  if (earliest.stopped_at()) stopped_at_ = earliest.stopped_at();
  switch (end.kind) {
    case HostLinks::End::Kind::complete: return;
    case HostLinks::End::Kind::stopped: fail(arrivals_.failure().value_or(Outcome{}), deadline);
    case HostLinks::End::Kind::host_lost:
      links_->hear_out(end.hosts.front());
      fail(arrivals_.failure_without(layout_.leader_of(end.hosts.front())), deadline);
    case HostLinks::End::Kind::timed_out: fail(ask_who_is_missing(end.hosts), earliest);
  }
}

Outcome Group::ask_who_is_missing(const std::vector<int>& hosts) {
  for (const int host : hosts) {
    if (links_->ask(host, arrivals_.calls(index_))) continue;
    for (const int rank : layout_.ranks_of(host)) arrivals_.note(rank, state_of(rank), Trouble::missing);
  }
  if (auto failure = arrivals_.failure()) return *failure;
  auto missing = arrivals_.noted_missing();
  if (missing.empty()) return arrivals_.failure_without(layout_.leader_of(hosts.front()));
  return {Outcome::Kind::timed_out, std::move(missing)};
}

// For another leader: those of this host that have not come to the call, or else this rank, which has not done its
// part.
std::vector<RankNews> Group::missing_here(std::uint64_t call) const {
  std::vector<RankNews> missing;
  for (const int rank : layout_.ranks_of(layout_.host_of(who_.rank))) {
    if (arrivals_.calls(layout_.index_of(rank)) < call) missing.push_back(news_of(rank, Trouble::missing));
  }
  if (missing.empty()) missing.push_back(news_of(who_.rank, Trouble::missing));
  return missing;
}

void Group::post_deadline(const io::Deadline& deadline) {
  memory_->control()[static_cast<std::size_t>(index_)].deadline.store(deadline.end().time_since_epoch().count());
}

io::Deadline Group::earliest_deadline(const io::Deadline& own) const {
  using TimePoint = io::Deadline::TimePoint;
  TimePoint earliest = own.end();
  for (const RankControl& rank : memory_->control()) {
    earliest = std::min(earliest, TimePoint(TimePoint::duration(rank.deadline.load())));
  }
  if (earliest == own.end()) return own;
  return own.part(earliest - own.full_time(), earliest);
}

std::shared_ptr<Segment> Group::allocate_segment(std::size_t bytes, io::Deadline& deadline) {
  require_usable();
  guarded([&] {
    arrivals_.post({.kind = CollectiveKind::allocate, .count = bytes});
    post_deadline(deadline);
    meet(deadline);
    require_same_calls(has_hosts() ? calls_of_all(deadline) : arrivals_.posted());
  });
  return reserve_on_all(bytes, deadline);
}

// On all ranks, or on none: then it throws Error, and the group goes on.
std::shared_ptr<Segment> Group::reserve_on_all(std::size_t bytes, io::Deadline& deadline) {
  std::shared_ptr<Segment> segment;
  std::optional<Refusal> refusal;
  guarded([&] {
    refusal = first_refusal(0, memory_->lacks_room_for(bytes), deadline);
    if (refusal) return;
    int error = 0;
    try {
      segment = memory_->reserve(bytes);
    } catch (const std::system_error& failure) {
      error = failure.code().value();
    }
    refusal = first_refusal(1, error, deadline);
  });
  if (refusal) throw Error(no_memory_message(present_call(), bytes, refusal->rank, refusal->error));
  return segment;
}

// Tells the others how step 0 or 1 of reserve_on_all() went here, and hears from them.
std::optional<Group::Refusal> Group::first_refusal(std::size_t step, int own_error, io::Deadline& deadline) {
  const std::span<RankControl> here = memory_->control();
  here[static_cast<std::size_t>(index_)].memory_error[step].store(static_cast<std::uint32_t>(own_error));
  meet(deadline);
  const auto error_of = [&](int index) {
    return static_cast<int>(here[static_cast<std::size_t>(index)].memory_error[step].load());
  };
  std::span<const GatheredWords> all;
  if (has_hosts()) {
    all = gather([&](int index) -> GatheredWords { return {static_cast<std::uint64_t>(error_of(index))}; }, deadline);
  }
  for (int rank = 0; rank < who_.size; ++rank) {
    const int error = has_hosts() ? static_cast<int>(all[layout_.place_of(rank)][0]) : error_of(rank);
    if (error != 0) return Refusal{rank, error};
  }
  return std::nullopt;
}

void Group::meet(io::Deadline& deadline) {
  if (const auto outcome = arrivals_.gave_up_ahead()) {
    is_late_ = !has_joined_ && all_have(Presence::gave_up, outcome->ranks);
    fail(*outcome, deadline);
  }
  has_joined_ = true;
  arrivals_.arrive();
  const Outcome outcome = arrivals_.wait(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

void Group::fail(const Outcome& outcome, const io::Deadline& deadline) {
  is_abort_elsewhere_ = outcome.kind == Outcome::Kind::lost && all_have(Presence::aborted, outcome.ranks);
  if (links_) {
    const bool is_late = outcome.kind == Outcome::Kind::timed_out;
    for (const int rank : outcome.ranks) links_->tell(news_of(rank, is_late ? Trouble::missing : Trouble::lost));
  }
  switch (outcome.kind) {
    case Outcome::Kind::lost: throw RankFailure(lost_message(present_call(), states_of(outcome.ranks)), outcome.ranks);
    case Outcome::Kind::timed_out:
      throw TimeoutError(timeout_message(present_call(), states_of(outcome.ranks), deadline.full_time()),
                         outcome.ranks);
    case Outcome::Kind::interrupted:
    case Outcome::Kind::complete: break;
  }
  throw_unusable();
}

void Group::require_same_calls(const std::vector<Fingerprint>& calls) const {
  if (const auto difference = first_difference(calls)) {
    throw MismatchError(mismatch_message(present_call(), *difference));
  }
}

void Group::require_usable() const {
  if (is_given_up()) throw_unusable();
}

void Group::throw_unusable() const {
  const std::lock_guard lock(reason_mutex_);
  const auto message = "the process group is of no further use: " + reason_;
  if (is_round_over_.load()) throw RoundOver(message);
  throw AbortedError(message);
}

// The first reason counts: whether this was it.
bool Group::give_up(Presence how, const std::string& reason, bool is_round_over) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (given_up_.load()) return false;
    reason_ = reason;
    is_round_over_.store(is_round_over);
    given_up_.store(true, std::memory_order_release);
  }
  arrivals_.leave(how);
  arrivals_.interrupt();
  if (!links_) return true;
  RankNews farewell = news_of(who_.rank, Trouble::lost);
  farewell.presence = how;
  links_->say_farewell(farewell);
  links_->wake();
  return true;
}

void Group::tell_failure(const std::string& reason) {
  const std::lock_guard lock(listener_mutex_);
  failure_ = reason;
  if (const auto tell = std::exchange(listener_, {})) tell(reason);
}

void Group::set_failure_listener(process_group::Backend::FailureListener tell) {
  const std::lock_guard lock(listener_mutex_);
  if (!failure_ || !tell) {
    listener_ = std::move(tell);
  } else {
    tell(*failure_);
  }
}

FailedCall Group::present_call() const {
  return {who_, ::getpid(), arrivals_.calls(index_), arrivals_.last_call(index_)};
}

// As far as this rank knows: of another host's ranks only what was noted.
RankState Group::state_of(int rank) const {
  RankState state{rank, pids_[static_cast<std::size_t>(rank)]};
  if (layout_.host_of(rank) == layout_.host_of(who_.rank)) {
    const int index = layout_.index_of(rank);
    state.presence = arrivals_.presence(index);
    state.calls = arrivals_.calls(index);
    state.last_call = arrivals_.last_call(index);
  } else if (const RankNote& note = memory_->notes()[static_cast<std::size_t>(rank)];
             note.trouble.load() != Trouble::none) {
    FingerprintWords words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = note.last_call[i].load();
    state.presence = note.presence.load();
    state.calls = note.calls.load();
    state.last_call = decode(words);
  }
  return state;
}

std::vector<RankState> Group::states_of(const std::vector<int>& ranks) const {
  std::vector<RankState> states;
  for (const int rank : ranks) states.push_back(state_of(rank));
  return states;
}

bool Group::all_have(Presence presence, const std::vector<int>& ranks) const {
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return state_of(rank).presence == presence; });
}

RankNews Group::news_of(int rank, Trouble trouble) const {
  const RankState state = state_of(rank);
  return {trouble, rank, state.pid, state.presence, state.calls, encode(state.last_call)};
}

class CpuBackend : public process_group::Backend {
 public:
  CpuBackend(const Membership& who, Meeting meeting, io::Deadline& deadline)
      : group_(std::make_unique<Group>(who, std::move(meeting), deadline)) {}

  ~CpuBackend() override {
    if (group_->in_forked_child()) static_cast<void>(group_.release());  // leaked: it is the parent's
  }
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  Device device() const override { return {}; }

  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) override {
    group_->require_own_process();
    for (const Collective& collective : collectives) require_known(collective);
    if (collectives.size() != 1) refuse_missing("coalesced calls");
    return group_->submit(collectives.front());
  }

  void run(const Collective& collective) override {
    group_->require_own_process();
    require_known(collective);
    group_->run(collective);
  }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    return group_->allocate(bytes, timeout);
  }

  std::unique_ptr<process_group::Backend> split(const Membership&, const std::vector<int>&,
                                                std::chrono::milliseconds) override {
    refuse_missing("sub-groups");
  }

  std::shared_ptr<process_group::DeviceMemory> device_memory() override { return process_group::host_memory(); }

  void abort(const std::string& reason, AbortCause cause) override {
    group_->require_own_process();
    group_->abort(reason, cause);
  }

  void set_failure_listener(FailureListener tell) override { group_->set_failure_listener(std::move(tell)); }

 private:
  std::unique_ptr<Group> group_;
};

}  // namespace

std::unique_ptr<process_group::Backend> make_cpu_backend(const process_group::Membership& membership, Meeting meeting,
                                                         io::Deadline& deadline) {
  try {
    return std::make_unique<CpuBackend>(membership, std::move(meeting), deadline);
  } catch (const std::system_error& error) {
    throw Error(std::string("the cpu backend can't start: ") + error.what() +
                "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses");
  }
}

}  // namespace ddp::cpu_backend
