#include "worker_runtime/cpu_backend/group.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "rendezvous/io/cut.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

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

}  // namespace

Group::Group(const Membership& who, Meeting meeting, io::Deadline& deadline)
    : who_(who),
      log_(facts_of(who)),
      layout_(meeting.layout),
      index_(layout_.index_of(who.rank)),
      pids_(pids_of(meeting, layout_.host_of(who.rank))),
      memory_(std::make_shared<SharedMemory>(std::move(meeting.shared_file), layout_, who.rank)),
      peer_memory_(pids_here(pids_, layout_.ranks_of(layout_.host_of(who.rank))), index_),
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
    if (layout_.ranks_of(layout_.host_of(who.rank)).size() > 1) probe_peer_memory(deadline);
    if (!has_hosts()) {
      collectives_.emplace(who_.rank, who_.size, arrivals_, *memory_,
                           reserve_on_all(Staging::part_bytes(who_.size), deadline));
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
  if (const CommunicationQueue::Turn turn(*queue_); turn) return run_at_once(collective);
  const io::Deadline deadline = process_group::deadline_after(collective.timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::operation_of(collective));
  queue_->run([&] { execute(collective, deadline, ticket); });
}

void Group::run_at_once(const Collective& collective) {
  require_usable();
  Opening opening{collective, process_group::deadline_after(collective.timeout, {})};
  opening_ = &opening;
  has_joined_ = false;
  try {
    if (who_.size == 1 || has_hosts()) note_down_opening();
    carry_out(collective, opening.deadline);
  } catch (...) {
    note_down_opening();
    log_.fail(*std::exchange(in_turn_, std::nullopt));  // unless that has been said
    throw;
  }
  if (opening.deadline.stopped_at()) stopped_at_ = opening.deadline.stopped_at();
  const auto took = std::chrono::steady_clock::now() - opening.begin;
  log_.complete(*std::exchange(in_turn_, std::nullopt), opening.wall_begin + took);
}

void Group::note_down_opening() {
  if (opening_ == nullptr) return;
  Opening& opening = *std::exchange(opening_, nullptr);
  opening.begin = std::chrono::steady_clock::now();
  opening.wall_begin = flight_recorder::wall_time(opening.begin);
  opening.deadline = process_group::deadline_after(opening.collective.timeout, opening.begin);
  in_turn_ = log_.record_started(flight_recorder::operation_of(opening.collective), opening.wall_begin);
}

void Group::execute(const Collective& collective, io::Deadline deadline, const Ticket& ticket) {
  recorded(ticket, [&] { take_turn(deadline, [&] { carry_out(collective, deadline); }); });
}

void Group::carry_out(const Collective& collective, io::Deadline& deadline) {
  if (who_.size == 1) return copy_to_output(collective);
  guarded([&] { exchange(collective, deadline); });
}

void Group::exchange(const Collective& collective, io::Deadline& deadline) {
  if (has_hosts()) return exchange_over_hosts(collective, deadline);
  collectives_->run(collective, {.meet = [&] { meet(deadline); },
                                 .arrive = [&] { arrive(deadline); },
                                 .wait = [&] { wait_for_all(deadline); },
                                 .require_same_calls = [&] {
                                   if (!arrivals_.all_call_the_same()) require_same_calls(arrivals_.posted());
                                 }});
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
