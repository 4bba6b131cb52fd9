#include "worker_runtime/backends/cpu/group/group.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cut.hpp"
#include "worker_runtime/backends/cpu/premultiplied.hpp"
#include "worker_runtime/backends/cpu/uneven/uneven_collectives.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::cpu_backend {

namespace {

std::vector<base::UniqueFd> pidfds_of(std::vector<core::Peer> peers) {
  std::vector<base::UniqueFd> pidfds;
  for (core::Peer& peer : peers) pidfds.push_back(std::move(peer.pidfd));
  return pidfds;
}

flight_recorder::GroupFacts facts_of(const Members& members, const Meeting& meeting) {
  const GroupMember& who = members.who;
  return {.backend = "cpu",
          .name = who.name.empty() ? "group" : who.name,
          .description = meeting.job_ranks.empty() ? "all ranks" : process_group::list_ranks(meeting.job_ranks),
          .round = who.round,
          .ranks = members.job_ranks,
          .rank = who.rank};
}

// All that a collective does among one.
void copy_to_output(const Collective& collective) {
  const std::size_t bytes = collective.output.bytes();
  if (bytes > 0 && collective.input.data != collective.output.data) {
    std::memcpy(collective.output.data, collective.input.data, bytes);
  }
}

}  // namespace

Group::Group(const GroupMember& who, Meeting& meeting)
    : members_(who, meeting),
      memory_(std::make_shared<SharedMemory>(std::move(meeting.shared_file), members_.layout, who.rank)),
      arrivals_(memory_->control(), members_.index, members_.here(), memory_->notes()),
      states_(members_, arrivals_, memory_->notes()),
      call_(facts_of(members_, meeting)),
      news_(members_, arrivals_, states_),
      phases_({members_, arrivals_, states_, status_, call_, news_}),
      hosts_(members_, *memory_, arrivals_, call_, news_, phases_),
      joint_memory_(members_, *memory_, phases_, hosts_),
      pairs_({members_, *memory_, joint_memory_.peer_memory(), arrivals_, states_, status_, call_}),
      ending_({members_, arrivals_, states_, status_, call_, news_, pairs_}) {}

void Group::begin(Meeting meeting, base::Deadline& deadline) {
  const base::Cut::Waker waker(deadline.cut(), [this] { arrivals_.presence().interrupt(); });
  ending_.guarded([&] {
    ending_.begin();
    start_threads(std::move(meeting));
    hosts_.post_deadline(deadline);
    if (members_.here().size() > 1) joint_memory_.probe_peer_memory(deadline);
    members_.has_hosts() ? begin_on_several_hosts(deadline) : begin_on_one_host(deadline);
  });
}

void Group::start_threads(Meeting meeting) {
  if (!meeting.links.empty()) news_.begin(std::move(meeting.links), [this] { ending_.cut_waits(); });
  if (meeting.peers.size() <= 1) return;
  watch_.emplace(pidfds_of(std::move(meeting.peers)), [this](int index) {
    arrivals_.presence().lose(index);
    pairs_.wake();
    news_.tell_end_of(static_cast<std::size_t>(index));
    ending_.cut_waits();
  });
}

void Group::begin_on_one_host(base::Deadline& deadline) {
  const int size = members_.who.size;
  collectives_.emplace(members_.who.rank, size, arrivals_, *memory_, joint_memory_.peer_memory(),
                       reserve_staging(Staging::part_bytes(size), deadline));
}

void Group::begin_on_several_hosts(base::Deadline& deadline) {
  const core::HostLayout& layout = members_.layout;
  const auto pids = hosts_.gather(
      [&](int index) -> GatheredWords {
        const int rank = members_.here()[static_cast<std::size_t>(index)];
        return {static_cast<std::uint64_t>(members_.pids[static_cast<std::size_t>(rank)])};
      },
      deadline);
  for (int rank = 0; rank < members_.who.size; ++rank) {
    if (members_.is_here(rank)) continue;  // it is known, and the threads may read it now
    members_.pids[static_cast<std::size_t>(rank)] = static_cast<int>(pids[layout.place_of(rank)][0]);
  }
  hosts_.begin(reserve_staging(HostCollectives::staging_bytes(layout), deadline,
                               HostCollectives::unused_by(layout, members_.who.rank)));
  pairs_.open(hosts_, deadline);
}

// What collectives need, and what is behind it.
std::shared_ptr<Segment> Group::reserve_staging(std::size_t bytes, base::Deadline& deadline, Gap unused) {
  const std::size_t for_collectives = in_whole_lines(bytes);
  const std::size_t all_bytes = for_collectives + PairChannels::shared_bytes(static_cast<int>(members_.here().size()));
  auto segment = joint_memory_.segment_of(joint_memory_.reserve(all_bytes, deadline, unused), all_bytes);
  pairs_.attach(segment, for_collectives);
  return segment;
}

Group::~Group() {
  ending_.leave(Presence::left, core::Cause::left);
  queue_->stop();
  watch_.reset();  // its thread, and then that of the news, use the other parts
  news_.end();
}

void Group::abort(const std::string& reason, AbortCause cause) {
  ending_.leave(Presence::aborted, cause == AbortCause::round_over ? core::Cause::round_over : core::Cause::aborted,
                reason);
}

std::shared_ptr<Work::State> Group::submit(std::span<const Collective> collectives) {
  const base::Deadline deadline = process_group::deadline_after(collectives.front().timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = call_.record(collectives);
  const auto execute = [this, ticket](std::span<const Collective> calls, base::Deadline until) {
    in_turn(ticket, until, [&] { carry_out(calls, until); });
  };
  try {
    if (collectives.size() == 1) {
      return queue_->submit([=, call = collectives.front()] { execute({&call, 1}, deadline); });
    }
    return queue_->submit(
        [=, calls = std::vector<Collective>(collectives.begin(), collectives.end())] { execute(calls, deadline); });
  } catch (...) {
    call_.refuse(ticket);
    throw;
  }
}

void Group::run(const Collective& collective) {
  if (const CommunicationQueue::Turn turn(*queue_); turn) {
    require_usable();
    return call_.run_at_once(collective, [&](base::Deadline& deadline) {
      const bool is_arrival_first = members_.who.size > 1 && !members_.has_hosts() && !is_pair_call(collective.kind);
      if (!is_arrival_first) call_.record_late();
      carry_out({&collective, 1}, deadline);
    });
  }
  base::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = call_.record({&collective, 1});
  wait_for_turn(ticket, deadline, [&] { carry_out({&collective, 1}, deadline); });
}

RegisteredMemory Group::allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
  base::Deadline deadline = process_group::deadline_after(timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = call_.record(flight_recorder::allocation_of(bytes, timeout));
  std::shared_ptr<Segment> segment;
  wait_for_turn(ticket, deadline, [&] { segment = allocate_segment(bytes, deadline); });
  void* const data = segment->own_part();
  return {std::shared_ptr<void>(std::move(segment), data), bytes, {}};
}

std::unique_ptr<Group> Group::split(const GroupMember& of_new, const std::vector<int>& ranks,
                                    std::chrono::milliseconds timeout) {
  base::Deadline deadline = process_group::deadline_after(timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = call_.record({.name = "split", .timeout = timeout});
  std::unique_ptr<Group> made;
  wait_for_turn(ticket, deadline, [&] { made = split_in_turn({of_new, ranks}, deadline); });
  return made;
}

template <class Steps>
void Group::in_turn(const Ticket& ticket, base::Deadline& deadline, const Steps& steps) {
  if (status_.has_failed()) {
    call_.refuse(ticket);
    status_.throw_unusable();
  }
  call_.run(ticket, deadline, steps);
}

template <class Steps>
void Group::wait_for_turn(const Ticket& ticket, base::Deadline& deadline, const Steps& steps) {
  bool has_begun = false;
  try {
    queue_->run([&] {
      has_begun = true;
      in_turn(ticket, deadline, steps);
    });
  } catch (...) {
    if (!has_begun) call_.refuse(ticket);  // an earlier call has failed meanwhile
    throw;
  }
}

// The collectives in their order, then the rest.
void Group::carry_out(std::span<const Collective> collectives, base::Deadline& deadline) {
  if (members_.who.size == 1) {
    for (const Collective& collective : collectives) {
      is_premultiplied(collective) ? exchange_premultiplied(collective, copy_to_output) : copy_to_output(collective);
    }
    return;
  }
  const auto exchange_any = [&](const Collective& collective) {
    is_uneven(collective) ? exchange_unevenly(collective, deadline) : exchange(collective, deadline);
  };
  ending_.guarded([&] {
    for (const Collective& collective : collectives) {
      if (is_pair_call(collective.kind)) continue;
      is_premultiplied(collective) ? exchange_premultiplied(collective, exchange_any) : exchange_any(collective);
    }
  });
  const bool has_pairs =
      std::any_of(collectives.begin(), collectives.end(), [](const auto& call) { return is_pair_call(call.kind); });
  if (!has_pairs) return;
  pairs_.require_listeners(collectives);
  ending_.guarded([&] { pairs_.run(collectives, deadline); });
}

class Group::StepsHere final : public Steps {
 public:
  StepsHere(Phases& phases, Arrivals& arrivals, base::Deadline& deadline)
      : phases_(phases), arrivals_(arrivals), deadline_(deadline) {}

  void meet() override { phases_.meet(deadline_); }
  void require_same_calls() override {
    if (!arrivals_.posts().all_call_the_same()) phases_.require_same_calls(arrivals_.posts().posted());
  }
  void lose(int index) override { phases_.fail_without(index, deadline_); }

 private:
  Phases& phases_;
  Arrivals& arrivals_;
  base::Deadline& deadline_;
};

void Group::exchange(const Collective& collective, base::Deadline& deadline) {
  if (members_.has_hosts()) return hosts_.run(collective, deadline);
  StepsHere steps(phases_, arrivals_, deadline);
  collectives_->run(collective, steps);
}

// Not inlined: the small calls would pay for its registers and its stack.
//
// A rank without a port can't do its part. All ranks know the ports of all, so all of them throw, and the error ends
// the group.
void Group::exchange_unevenly(const Collective& collective, base::Deadline& deadline) {
  pairs_.require_all_listeners();
  const UnevenCollectives uneven(members_.layout, members_.who.rank);
  uneven.run(collective, {.exchange = [&](const Collective& even) { exchange(even, deadline); },
                          .exchange_in_pairs = [&](auto messages) { pairs_.run(messages, deadline); },
                          .fail_by_mismatch = [&](const std::string& what) { phases_.fail_by_mismatch(what); }});
}

// On all ranks, or on none: then it throws Error, and the group goes on.
std::shared_ptr<Segment> Group::allocate_segment(std::size_t bytes, base::Deadline& deadline) {
  JointMemory::Reserved reserved;
  ending_.guarded([&] {
    arrivals_.posts().post({.kind = CollectiveKind::allocate, .count = bytes});
    hosts_.post_deadline(deadline);
    phases_.meet(deadline);
    const std::vector<Fingerprint>& here = arrivals_.posts().posted();
    members_.has_hosts() ? hosts_.require_same_calls(here, deadline) : phases_.require_same_calls(here);
    reserved = joint_memory_.reserve(bytes, deadline);
  });
  return joint_memory_.segment_of(std::move(reserved), bytes);
}

std::unique_ptr<Group> Group::split_in_turn(const NewGroup& made, base::Deadline& deadline) {
  const auto gather = [&](std::span<const std::byte> own) {
    std::vector<std::byte> all(own.size() * static_cast<std::size_t>(members_.who.size));
    const Collective call{.kind = CollectiveKind::all_gather,
                          .input = {own.data(), own.size(), DataType::uint8},
                          .output = {all.data(), all.size(), DataType::uint8},
                          .within = process_group::Within::making_a_group};
    if (members_.who.size == 1) {
      std::copy(own.begin(), own.end(), all.begin());
    } else {
      ending_.guarded([&] { exchange(call, deadline); });
    }
    return all;
  };
  base::Deadline of_others = deadline;  // the group's own waits end by themselves, and say why
  of_others.cut_by(ending_.cut());
  std::unique_ptr<Group> group;
  const auto duplicate_pidfd = [&](int rank) { return watch_->duplicate(members_.layout.index_of(rank)); };
  meet_within({members_.who, members_.layout, members_.pids, duplicate_pidfd, SharedMemory::make_file, members_.network,
               members_.job_ranks, gather},
              made,
              {.make = [&](Meeting& meeting) { group = std::make_unique<Group>(made.who, meeting); },
               .begin = [&](Meeting meeting) { group->begin(std::move(meeting), of_others); }},
              of_others);
  return group;
}

}  // namespace ddp::cpu_backend
