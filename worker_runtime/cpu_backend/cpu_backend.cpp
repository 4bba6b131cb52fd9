#include "worker_runtime/cpu_backend/cpu_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/cpu_backend/arrivals.hpp"
#include "worker_runtime/cpu_backend/collectives.hpp"
#include "worker_runtime/cpu_backend/communication_queue.hpp"
#include "worker_runtime/cpu_backend/failure_message.hpp"
#include "worker_runtime/cpu_backend/peer_watch.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::cpu_backend {

namespace {

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
  void abort(const std::string& reason) { give_up(Presence::aborted, "it was aborted: " + reason); }

  bool in_forked_child() const { return memory_->fork_guard().in_forked_child(); }
  void require_own_process() const { memory_->fork_guard().require_own_process(); }

 private:
  // What a job of the queue does when its turn has come.
  template <class Steps>
  void take_turn(io::Deadline& deadline, const Steps& steps);

  void execute(const Collective& collective, io::Deadline deadline);
  void exchange(const Collective& collective, io::Deadline& deadline);
  std::shared_ptr<Segment> allocate_segment(std::size_t bytes, io::Deadline& deadline);
  std::shared_ptr<Segment> reserve_on_all(std::size_t bytes, io::Deadline& deadline);

  // What a rank could not do for an allocation.
  struct Refusal {
    int rank = 0;
    int error = 0;  // an errno
  };
  std::optional<Refusal> first_refusal(std::size_t step, int own_error, io::Deadline& deadline);

  // An error in these steps ends the group: it is given up with the error's message.
  template <class Steps>
  void guarded(const Steps& steps);

  void meet(io::Deadline& deadline);
  [[noreturn]] void fail(const Outcome& outcome, const io::Deadline& deadline) const;
  void require_same_calls(const std::vector<Fingerprint>& calls) const;

  void give_up(Presence how, const std::string& reason);
  void require_usable() const;
  std::string unusable_message() const;

  FailedCall present_call() const;
  std::vector<RankState> states_of(const std::vector<int>& ranks) const;

  Membership who_;
  std::vector<int> pids_;  // by rank
  std::shared_ptr<SharedMemory> memory_;
  Arrivals arrivals_;
  std::optional<Collectives> collectives_;
  std::shared_ptr<CommunicationQueue> queue_ = std::make_shared<CommunicationQueue>();
  std::optional<io::Deadline::TimePoint> stopped_at_;  // the jobs'; when a wait last found that the process was stopped
  std::atomic<bool> given_up_{false};
  mutable std::mutex reason_mutex_;
  std::string reason_;              // guarded by reason_mutex_; why it was given up
  std::optional<PeerWatch> watch_;  // the last member: its thread calls arrivals_
};

std::vector<int> pids_of(const std::vector<Peer>& peers) {
  std::vector<int> pids;
  for (const Peer& peer : peers) pids.push_back(peer.pid);
  return pids;
}

std::vector<io::UniqueFd> pidfds_of(std::vector<Peer> peers) {
  std::vector<io::UniqueFd> pidfds;
  for (Peer& peer : peers) pidfds.push_back(std::move(peer.pidfd));
  return pidfds;
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
      pids_(pids_of(meeting.peers)),
      memory_(std::make_shared<SharedMemory>(std::move(meeting.shared_file), who.rank, who.size)),
      arrivals_(memory_->control(), who.rank) {
  // The others are waiting from here on. (One that can't even map the memory has no way to tell them: they notice its
  // end, or time out.)
  guarded([&] {
    if (who.size > 1) {
      watch_.emplace(pidfds_of(std::move(meeting.peers)), [this](int rank) { arrivals_.lose(rank); });
    }
    collectives_.emplace(who_.rank, who_.size, reserve_on_all(staging_bytes(who_.size), deadline));
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
  return queue_->submit([this, collective, deadline] { execute(collective, deadline); });
}

void Group::run(const Collective& collective) {
  const io::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->run([&] { execute(collective, deadline); });
}

RegisteredMemory Group::allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
  io::Deadline deadline = process_group::deadline_after(timeout);
  std::shared_ptr<Segment> segment;
  queue_->run([&] { take_turn(deadline, [&] { segment = allocate_segment(bytes, deadline); }); });
  void* const data = segment->own_part();
  return {std::shared_ptr<void>(std::move(segment), data), bytes, {}};
}

template <class Steps>
void Group::take_turn(io::Deadline& deadline, const Steps& steps) {
  deadline.begin(std::chrono::steady_clock::now(), stopped_at_);
  steps();
  if (deadline.stopped_at()) stopped_at_ = deadline.stopped_at();
}

void Group::execute(const Collective& collective, io::Deadline deadline) {
  require_usable();
  if (who_.size == 1) return copy_to_output(collective);
  take_turn(deadline, [&] { guarded([&] { exchange(collective, deadline); }); });
}

template <class Steps>
void Group::guarded(const Steps& steps) {
  try {
    steps();
  } catch (const std::exception& error) {
    give_up(Presence::gave_up, error.what());
    throw;
  }
}

void Group::exchange(const Collective& collective, io::Deadline& deadline) {
  const ConstMemoryRange memory = Collectives::memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_->find(memory.data, memory.bytes()) : std::nullopt;
  Fingerprint call = fingerprint_of(collective);
  if (placement) call.location = placement->location;

  arrivals_.post(call);
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

std::shared_ptr<Segment> Group::allocate_segment(std::size_t bytes, io::Deadline& deadline) {
  require_usable();
  guarded([&] {
    arrivals_.post({.kind = CollectiveKind::allocate, .count = bytes});
    meet(deadline);
    require_same_calls(arrivals_.posted());
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
  const std::span<RankControl> ranks = memory_->control();
  ranks[static_cast<std::size_t>(who_.rank)].memory_error[step].store(static_cast<std::uint32_t>(own_error));
  meet(deadline);
  for (int rank = 0; rank < who_.size; ++rank) {
    const auto error = static_cast<int>(ranks[static_cast<std::size_t>(rank)].memory_error[step].load());
    if (error != 0) return Refusal{rank, error};
  }
  return std::nullopt;
}

void Group::meet(io::Deadline& deadline) {
  arrivals_.arrive();
  const Outcome outcome = arrivals_.wait(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

void Group::fail(const Outcome& outcome, const io::Deadline& deadline) const {
  switch (outcome.kind) {
    case Outcome::Kind::lost: throw RankFailure(lost_message(present_call(), states_of(outcome.ranks)), outcome.ranks);
    case Outcome::Kind::timed_out:
      throw TimeoutError(timeout_message(present_call(), states_of(outcome.ranks), deadline.full_time()),
                         outcome.ranks);
    case Outcome::Kind::interrupted:
    case Outcome::Kind::complete: break;
  }
  throw AbortedError(unusable_message());
}

void Group::require_same_calls(const std::vector<Fingerprint>& calls) const {
  if (const auto difference = first_difference(calls)) {
    throw MismatchError(mismatch_message(present_call(), *difference));
  }
}

void Group::require_usable() const {
  if (given_up_.load(std::memory_order_acquire)) throw AbortedError(unusable_message());
}

std::string Group::unusable_message() const {
  const std::lock_guard lock(reason_mutex_);
  return "the process group is of no further use: " + reason_;
}

// The first reason counts.
void Group::give_up(Presence how, const std::string& reason) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (given_up_.load()) return;
    reason_ = reason;
    given_up_.store(true, std::memory_order_release);
  }
  arrivals_.leave(how);
  arrivals_.interrupt();
}

FailedCall Group::present_call() const {
  return {who_, ::getpid(), arrivals_.calls(who_.rank), arrivals_.last_call(who_.rank)};
}

std::vector<RankState> Group::states_of(const std::vector<int>& ranks) const {
  std::vector<RankState> states;
  for (const int rank : ranks) {
    states.push_back({rank, pids_[static_cast<std::size_t>(rank)], arrivals_.presence(rank), arrivals_.calls(rank),
                      arrivals_.last_call(rank)});
  }
  return states;
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

  std::shared_ptr<Work::State> submit(const Collective& collective) override {
    group_->require_own_process();
    return group_->submit(collective);
  }

  void run(const Collective& collective) override {
    group_->require_own_process();
    group_->run(collective);
  }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    return group_->allocate(bytes, timeout);
  }

  void abort(const std::string& reason) override {
    group_->require_own_process();
    group_->abort(reason);
  }

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
