#include "worker_runtime/backends/cpu/group/host_calls.hpp"

#include <algorithm>
#include <chrono>

#include "worker_runtime/backends/cpu/one_host/in_place.hpp"

namespace ddp::cpu_backend {

HostCollectives::Steps HostCalls::steps(base::Deadline& deadline, bool is_monitored) {
  return {.meet = [&] { phases_.meet(deadline); },
          .meet_after_leaders = [&] { phases_.meet_after_leaders(deadline); },
          .exchange =
              [this, &deadline, is_monitored](const HostCollectives::AmongLeaders& among_leaders) {
                exchange(among_leaders, deadline, is_monitored);
              }};
}

void HostCalls::run(const Collective& collective, base::Deadline& deadline) {
  const ConstMemoryRange memory = memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_.find(memory.data, memory.bytes()) : std::nullopt;
  Fingerprint call = core::fingerprint_of(collective);
  if (placement) call.location = placement->location;
  arrivals_.posts().post(call);
  const HostCollectives::Steps steps_of_call = steps(deadline, collective.is_monitored);
  post_deadline(deadline);
  collectives_->stage(collective);
  collective.is_monitored ? meet_or_name_all(deadline) : phases_.meet(deadline);
  const std::vector<Fingerprint>& here = arrivals_.posts().posted();
  const bool is_in_place = placement && std::all_of(here.begin(), here.end(), [&](const Fingerprint& other) {
                             return other.location == placement->location;
                           });
  require_same_calls(&collective, here, steps_of_call);
  collectives_->finish(collective, is_in_place ? &*placement : nullptr, steps_of_call);
  news_.finish_call();
}

void HostCalls::require_same_calls(const std::vector<Fingerprint>& here, base::Deadline& deadline) {
  require_same_calls(nullptr, here, steps(deadline));
}

void HostCalls::require_same_calls(const Collective* collective, const std::vector<Fingerprint>& here,
                                   const HostCollectives::Steps& steps_of_call) {
  if (collectives_->open(collective, here, steps_of_call)) return;
  std::vector<Fingerprint> calls;
  for (int rank = 0; rank < members_.who.size; ++rank) calls.push_back(collectives_->call_of(rank));
  phases_.require_same_calls(calls);
}

std::span<const GatheredWords> HostCalls::gather(const std::function<GatheredWords(int index)>& words_of,
                                                 base::Deadline& deadline) {
  phases_.meet(deadline);
  const std::span<GatheredWords> all = memory_.gathered();
  if (news_.is_active()) {
    const HostLayout& layout = members_.layout;
    const auto words_of_host = [&](int host) {
      return std::as_writable_bytes(all.subspan(layout.first_place(host), layout.ranks_of(host).size()));
    };
    for (int index = 0; index < static_cast<int>(members_.here().size()); ++index) {
      all[layout.first_place(members_.own_host) + static_cast<std::size_t>(index)] = words_of(index);
    }
    std::vector<HostStreams::Parcel> parcels;
    for (int host = 0; host < layout.host_count(); ++host) {
      parcels.push_back({words_of_host(members_.own_host), words_of_host(host)});
    }
    exchange([&](HostStreams& streams, const auto& wait) { return streams.transfer(parcels, wait); }, deadline);
  }
  phases_.meet_after_leaders(deadline);
  return all;
}

// Its deadline is the earliest of the ranks of this host. All of them are in the call and wait for the verdict of this
// one.
void HostCalls::exchange(const HostCollectives::AmongLeaders& among_leaders, base::Deadline& deadline,
                         bool is_monitored) {
  base::Deadline earliest = earliest_deadline(deadline);
  news_.begin_exchange();
  const HostStreams::End end =
      among_leaders(news_.streams(), {[this] { return arrivals_.failure().has_value(); }, earliest});
  if (end.kind == HostStreams::End::Kind::complete) news_.end_exchange();
  call_.set_stopped_at(earliest);
  const auto as_asked = [&](const Outcome& outcome) {
    return is_monitored ? news_.with_all_missing(outcome) : outcome;
  };
  switch (end.kind) {
    case HostStreams::End::Kind::complete: return;
    case HostStreams::End::Kind::stopped: phases_.fail(as_asked(arrivals_.failure().value_or(Outcome{})), deadline);
    case HostStreams::End::Kind::host_lost: phases_.fail(as_asked(news_.failure_without(end.hosts.front())), deadline);
    case HostStreams::End::Kind::timed_out: phases_.fail(news_.find_missing(end.hosts), earliest);
  }
}

// If the ranks of this host do not meet in time, the error names the missing ranks of other hosts too. The leader asks
// for these, and the others wait until it has, which its end of this group shows. If the leader is missing too, they
// know of their own host only.
void HostCalls::meet_or_name_all(base::Deadline& deadline) {
  try {
    phases_.meet(deadline);
  } catch (const TimeoutError& error) {
    std::vector<int> missing = error.ranks();
    const int leader = members_.layout.leader_of(members_.own_host);
    if (news_.is_active()) {
      news_.ask();
    } else if (std::find(missing.begin(), missing.end(), leader) == missing.end()) {
      arrivals_.presence().wait_until_gone(0, std::chrono::steady_clock::now() + kVerdictMax);
    }
    const std::vector<int> elsewhere = news_.missing_elsewhere();
    missing.insert(missing.end(), elsewhere.begin(), elsewhere.end());
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    phases_.fail_by_timeout(missing, deadline);
  }
}

void HostCalls::post_deadline(const base::Deadline& deadline) {
  memory_.control()[static_cast<std::size_t>(members_.index)].deadline.store(deadline.end().time_since_epoch().count());
}

base::Deadline HostCalls::earliest_deadline(const base::Deadline& own) const {
  using TimePoint = base::Deadline::TimePoint;
  TimePoint earliest = own.end();
  for (const RankControl& rank : memory_.control()) {
    earliest = std::min(earliest, TimePoint(TimePoint::duration(rank.deadline.load())));
  }
  if (earliest == own.end()) return own;
  return own.part(earliest - own.full_time(), earliest);
}

}  // namespace ddp::cpu_backend
