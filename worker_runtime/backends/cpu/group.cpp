#include "worker_runtime/backends/cpu/group.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "rendezvous/io/cut.hpp"
#include "worker_runtime/backends/cpu/premultiplied.hpp"
#include "worker_runtime/core/failure/judge.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::cpu_backend {

namespace {

std::vector<int> pids_of(const Meeting& meeting, int host) {
  std::vector<int> pids(static_cast<std::size_t>(meeting.layout.size()));
  for (std::size_t index = 0; index < meeting.peers.size(); ++index) {
    pids[static_cast<std::size_t>(meeting.layout.ranks_of(host)[index])] = meeting.peers[index].pid;
  }
  return pids;
}

std::vector<int> pids_here(const std::vector<int>& pids, const std::vector<int>& ranks) {
  std::vector<int> here;
  for (const int rank : ranks) here.push_back(pids[static_cast<std::size_t>(rank)]);
  return here;
}

std::vector<io::UniqueFd> pidfds_of(std::vector<Peer> peers) {
  std::vector<io::UniqueFd> pidfds;
  for (Peer& peer : peers) pidfds.push_back(std::move(peer.pidfd));
  return pidfds;
}

std::vector<int> job_ranks_of(const Membership& who, const Meeting& meeting) {
  if (!meeting.job_ranks.empty()) return meeting.job_ranks;
  std::vector<int> ranks(static_cast<std::size_t>(who.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

flight_recorder::GroupFacts facts_of(const Membership& who, const Meeting& meeting) {
  return {.backend = "cpu",
          .name = who.name.empty() ? "group" : who.name,
          .description = meeting.job_ranks.empty() ? "all ranks" : process_group::list_ranks(meeting.job_ranks),
          .round = who.round,
          .ranks = job_ranks_of(who, meeting),
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

Group::Group(const Membership& who, Meeting& meeting)
    : who_(who),
      log_(facts_of(who, meeting)),
      layout_(meeting.layout),
      index_(layout_.index_of(who.rank)),
      pids_(pids_of(meeting, layout_.host_of(who.rank))),
      network_(meeting.network),
      job_ranks_(job_ranks_of(who, meeting)),
      memory_(std::make_shared<SharedMemory>(std::move(meeting.shared_file), layout_, who.rank)),
      peer_memory_(pids_here(pids_, layout_.ranks_of(layout_.host_of(who.rank))), index_),
      arrivals_(memory_->control(), index_, layout_.ranks_of(layout_.host_of(who.rank)), memory_->notes()),
      pairs_(
          index_, static_cast<int>(meeting.peers.size()), *memory_, peer_memory_,
          {.is_here =
               [this](int index) { return arrivals_.presence(index) == Presence::here && !arrivals_.has_ended(index); },
           .has_left = [this](int index) { return arrivals_.presence(index) == Presence::left; },
           .is_given_up = [this] { return given_up_.load() || is_pair_over_.load(); }}) {}

void Group::begin(Meeting meeting, io::Deadline& deadline) {
  const io::Cut::Waker waker(deadline.cut(), [this] { arrivals_.interrupt(); });
  guarded([&] {
    if (who_.size > 1) failure_cut_.emplace();
    if (!meeting.links.empty()) {
      links_.emplace(
          layout_, layout_.host_of(who_.rank), std::move(meeting.links),
          [this](const RankNews& news) {
            const core::RankState state{news.rank, news.pid, news.presence, news.calls, core::decode(news.last_call)};
            arrivals_.note(news.rank, state, news.trouble);
            cut_waits();
          },
          [this](std::uint64_t call) { return missing_here(call); });
    }
    if (meeting.peers.size() > 1) {
      watch_.emplace(pidfds_of(std::move(meeting.peers)), [this](int index) {
        arrivals_.lose(index);
        pairs_.wake();
        if (links_) tell_of_end(static_cast<std::size_t>(index));
        cut_waits();
      });
    }
    post_deadline(deadline);
    if (layout_.ranks_of(layout_.host_of(who_.rank)).size() > 1) probe_peer_memory(deadline);
    if (!has_hosts()) {
      collectives_.emplace(who_.rank, who_.size, arrivals_, *memory_, peer_memory_,
                           reserve_staging(Staging::part_bytes(who_.size), deadline));
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
    host_collectives_.emplace(layout_, who_.rank,
                              reserve_staging(HostCollectives::staging_bytes(layout_), deadline,
                                              HostCollectives::unused_by(layout_, who_.rank)));
    open_to_other_hosts(network_, deadline);
  });
}

// What collectives need, and what is behind it.
std::shared_ptr<Segment> Group::reserve_staging(std::size_t bytes, io::Deadline& deadline, Gap unused) {
  const std::size_t for_collectives = in_whole_lines(bytes);
  const auto here = static_cast<int>(memory_->control().size());
  auto segment = reserve_on_all(for_collectives + PointToPoint::shared_bytes(here), deadline, unused);
  pairs_.attach(segment, for_collectives);
  return segment;
}

Group::~Group() {
  const Failure departure{.cause = Cause::left, .rank = who_.rank};
  give_up(Presence::left, core::judge(failed_group(), departure, {}));
  queue_->stop();
}

std::shared_ptr<Work::State> Group::submit(std::span<const Collective> collectives) {
  const io::Deadline deadline = process_group::deadline_after(collectives.front().timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = record(collectives);
  try {
    if (collectives.size() == 1) {
      return queue_->submit([this, call = collectives.front(), deadline, ticket] {
        execute({&call, 1}, deadline, ticket);
      });
    }
    return queue_->submit([this, calls = std::vector<Collective>(collectives.begin(), collectives.end()), deadline,
                           ticket] { execute(calls, deadline, ticket); });
  } catch (...) {
    log_.refuse(ticket);
    throw;
  }
}

void Group::run(const Collective& collective) {
  if (const CommunicationQueue::Turn turn(*queue_); turn) return run_at_once(collective);
  const io::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::operation_of(collective));
  run_in_turn(ticket, [&] { execute({&collective, 1}, deadline, ticket); });
}

void Group::run_in_turn(const Ticket& ticket, const CommunicationQueue::Job& job) {
  bool has_begun = false;
  try {
    queue_->run([&] {
      has_begun = true;
      job();
    });
  } catch (...) {
    if (!has_begun) log_.refuse(ticket);  // an earlier call has failed meanwhile
    throw;
  }
}

void Group::run_at_once(const Collective& collective) {
  require_usable();
  Opening opening{collective, process_group::deadline_after(collective.timeout, {})};
  opening_ = &opening;
  has_joined_ = false;
  try {
    if (who_.size == 1 || has_hosts() || is_pair_call(collective.kind)) note_down_opening();
    carry_out({&collective, 1}, opening.deadline);
  } catch (...) {
    note_down_opening();
    log_.fail(*std::exchange(in_turn_, std::nullopt));  // unless that has been said
    throw;
  }
  if (opening.deadline.stopped_at()) stopped_at_ = opening.deadline.stopped_at();
  log_.complete_newest(*std::exchange(in_turn_, std::nullopt), clock_.now().wall);
}

void Group::note_down_opening() {
  if (opening_ == nullptr) return;
  Opening& opening = *std::exchange(opening_, nullptr);
  const flight_recorder::Moment begin = clock_.now();
  opening.deadline = process_group::deadline_after(opening.collective.timeout, begin.steady);
  in_turn_ = log_.record_started(flight_recorder::operation_of(opening.collective), begin.wall);
}

Ticket Group::record(std::span<const Collective> collectives) {
  if (collectives.size() == 1) return log_.record(flight_recorder::operation_of(collectives.front()));
  std::vector<flight_recorder::Operation> operations;
  for (const Collective& collective : collectives) operations.push_back(flight_recorder::operation_of(collective));
  return log_.record(operations);
}

void Group::execute(std::span<const Collective> collectives, io::Deadline deadline, const Ticket& ticket) {
  recorded(ticket, [&] { take_turn(deadline, [&] { carry_out(collectives, deadline); }); });
}

// The collectives in their order, then the rest.
void Group::carry_out(std::span<const Collective> collectives, io::Deadline& deadline) {
  if (who_.size == 1) {
    for (const Collective& collective : collectives) {
      is_premultiplied(collective) ? exchange_premultiplied(collective, copy_to_output) : copy_to_output(collective);
    }
    return;
  }
  const auto exchange_any = [&](const Collective& collective) {
    is_uneven(collective) ? exchange_unevenly(collective, deadline) : exchange(collective, deadline);
  };
  guarded([&] {
    for (const Collective& collective : collectives) {
      if (is_pair_call(collective.kind)) continue;
      is_premultiplied(collective) ? exchange_premultiplied(collective, exchange_any) : exchange_any(collective);
    }
  });
  const bool has_pairs =
      std::any_of(collectives.begin(), collectives.end(), [](const auto& call) { return is_pair_call(call.kind); });
  if (!has_pairs) return;
  require_listeners(collectives);
  guarded([&] { exchange_in_pairs(collectives, deadline); });
}

class Group::StepsHere final : public Steps {
 public:
  StepsHere(Group& group, io::Deadline& deadline) : group_(group), deadline_(deadline) {}

  void meet() override { group_.meet(deadline_); }
  void require_same_calls() override {
    if (!group_.arrivals_.all_call_the_same()) group_.require_same_calls(group_.arrivals_.posted());
  }
  void lose(int index) override {
    const auto ahead = group_.arrivals_.gave_up_ahead();
    group_.fail(ahead ? *ahead : group_.arrivals_.failure_without(index), deadline_);
  }

 private:
  Group& group_;
  io::Deadline& deadline_;
};

void Group::exchange(const Collective& collective, io::Deadline& deadline) {
  if (has_hosts()) return exchange_over_hosts(collective, deadline);
  StepsHere steps(*this, deadline);
  collectives_->run(collective, steps);
}

void Group::meet(io::Deadline& deadline) {
  arrive(deadline);
  wait_for_all(deadline);
}

void Group::arrive(const io::Deadline& deadline) {
  if (const auto outcome = arrivals_.gave_up_ahead()) {
    is_late_ = !has_joined_ && all_have(Presence::gave_up, outcome->ranks);
    fail(*outcome, deadline);
  }
  has_joined_ = true;
  arrivals_.arrive();
  note_down_opening();
}

void Group::wait_for_all(io::Deadline& deadline) {
  const Outcome outcome = arrivals_.wait(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

}  // namespace ddp::cpu_backend
