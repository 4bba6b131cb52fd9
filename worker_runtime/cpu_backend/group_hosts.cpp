#include "worker_runtime/cpu_backend/group.hpp"

#include <algorithm>
#include <utility>

namespace ddp::cpu_backend {

void Group::exchange_over_hosts(const Collective& collective, io::Deadline& deadline) {
  const ConstMemoryRange memory = memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_->find(memory.data, memory.bytes()) : std::nullopt;
  Fingerprint call = fingerprint_of(collective);
  if (placement) call.location = placement->location;
  arrivals_.post(call);
  post_deadline(deadline);
  meet(deadline);
  const std::vector<Fingerprint>& here = arrivals_.posted();
  const bool is_in_place = placement && std::all_of(here.begin(), here.end(), [&](const Fingerprint& other) {
                             return other.location == placement->location;
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
    if (links_->ask(host, arrivals_.own_call())) continue;
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

}  // namespace ddp::cpu_backend
