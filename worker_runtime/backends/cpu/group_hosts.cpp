#include "worker_runtime/backends/cpu/group.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ddp::cpu_backend {

HostCollectives::Steps Group::steps_over_hosts(io::Deadline& deadline, bool is_monitored) {
  return {.meet = [&] { meet(deadline); },
          .meet_after_leaders = [&] { meet_after_leaders(deadline); },
          .exchange =
              [this, &deadline, is_monitored](const HostCollectives::AmongLeaders& exchange) {
                among_leaders(exchange, deadline, is_monitored);
              }};
}

void Group::exchange_over_hosts(const Collective& collective, io::Deadline& deadline) {
  const ConstMemoryRange memory = memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_->find(memory.data, memory.bytes()) : std::nullopt;
  Fingerprint call = core::fingerprint_of(collective);
  if (placement) call.location = placement->location;
  arrivals_.post(call);
  const HostCollectives::Steps steps = steps_over_hosts(deadline, collective.is_monitored);
  post_deadline(deadline);
  host_collectives_->stage(collective);
  collective.is_monitored ? meet_or_name_all(deadline) : meet(deadline);
  const std::vector<Fingerprint>& here = arrivals_.posted();
  const bool is_in_place = placement && std::all_of(here.begin(), here.end(), [&](const Fingerprint& other) {
                             return other.location == placement->location;
                           });
  require_same_calls_over_hosts(&collective, here, steps);
  host_collectives_->finish(collective, is_in_place ? &*placement : nullptr, steps);
  finished_call_.store(arrivals_.own_call());
}

void Group::require_same_calls_over_hosts(const Collective* collective, const std::vector<Fingerprint>& here,
                                          const HostCollectives::Steps& steps) {
  if (host_collectives_->open(collective, here, steps)) return;
  std::vector<Fingerprint> calls;
  for (int rank = 0; rank < who_.size; ++rank) calls.push_back(host_collectives_->call_of(rank));
  require_same_calls(calls);
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
    std::vector<HostStreams::Parcel> parcels;
    for (int host = 0; host < layout_.host_count(); ++host) {
      parcels.push_back({words_of_host(own_host), words_of_host(host)});
    }
    among_leaders([&](HostStreams& streams, const auto& wait) { return streams.transfer(parcels, wait); }, deadline);
  }
  meet_after_leaders(deadline);
  return all;
}

void Group::meet_after_leaders(io::Deadline& deadline) {
  arrive(deadline);
  const Outcome outcome = arrivals_.wait_for_leader(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

// Its deadline is the earliest of this host's ranks, which all are in the call: they wait for this one's verdict.
void Group::among_leaders(const HostCollectives::AmongLeaders& exchange, io::Deadline& deadline, bool is_monitored) {
  io::Deadline earliest = earliest_deadline(deadline);
  exchanged_call_.store(arrivals_.own_call());
  const HostStreams::End end =
      exchange(links_->streams(), {[this] { return arrivals_.failure().has_value(); }, earliest});
  if (end.kind == HostStreams::End::Kind::complete) exchanged_call_.store(0);
  if (earliest.stopped_at()) stopped_at_ = earliest.stopped_at();
  const auto as_asked = [&](const Outcome& outcome) { return is_monitored ? with_all_missing(outcome) : outcome; };
  switch (end.kind) {
    case HostStreams::End::Kind::complete: return;
    case HostStreams::End::Kind::stopped: fail(as_asked(arrivals_.failure().value_or(Outcome{})), deadline);
    case HostStreams::End::Kind::host_lost:
      links_->hear_out(end.hosts.front());
      fail(as_asked(arrivals_.failure_without(layout_.leader_of(end.hosts.front()))), deadline);
    case HostStreams::End::Kind::timed_out: fail(ask_who_is_missing(end.hosts), earliest);
  }
}

// Whom this leader waits for may wait for another in turn, so all are asked.
Outcome Group::ask_who_is_missing(const std::vector<int>& awaited) {
  ask_other_hosts();
  if (auto failure = arrivals_.failure()) return *failure;
  auto missing = arrivals_.noted_missing();
  if (missing.empty()) return arrivals_.failure_without(layout_.leader_of(awaited.front()));
  return {Outcome::Kind::timed_out, std::move(missing)};
}

// Another host's leader whose time was up first may have asked nobody, and has told of its own host only.
Outcome Group::with_all_missing(const Outcome& outcome) {
  if (outcome.kind != Outcome::Kind::timed_out) return outcome;
  ask_other_hosts();
  auto missing = missing_elsewhere();
  if (missing.empty()) return outcome;
  return {Outcome::Kind::timed_out, std::move(missing)};
}

// Of other hosts, as far as was told. A leader that is about to wait for other hosts says that it is missed, though it
// has come.
std::vector<int> Group::missing_elsewhere() const {
  std::vector<int> missing = arrivals_.noted_missing();
  std::erase_if(missing, [&](int rank) {
    const RankState state = state_of(rank);
    return state.answer == core::Answer::told && state.calls >= arrivals_.own_call();
  });
  return missing;
}

// Notes their ranks that have not come to the present call, and all of a host that does not answer.
void Group::ask_other_hosts() {
  for (const int host : links_->ask(arrivals_.own_call())) {
    for (const int rank : layout_.ranks_of(host)) {
      RankState state = state_of(rank);
      if (state.answer != core::Answer::told) state.calls = kCallsUnknown;
      arrivals_.note(rank, state, Trouble::missing);
    }
  }
}

// The same as meet(), but where it times out the error names those of other hosts too: the leader asks for them, and
// the others wait until it has, which its end of this group says. They know no more than their host where it is missing
// too.
void Group::meet_or_name_all(io::Deadline& deadline) {
  try {
    meet(deadline);
  } catch (const TimeoutError& error) {
    std::vector<int> missing = error.ranks();
    const int leader = layout_.leader_of(layout_.host_of(who_.rank));
    if (links_) {
      ask_other_hosts();
    } else if (std::find(missing.begin(), missing.end(), leader) == missing.end()) {
      arrivals_.wait_until_gone(0, std::chrono::steady_clock::now() + kVerdictMax);
    }
    const std::vector<int> elsewhere = missing_elsewhere();
    missing.insert(missing.end(), elsewhere.begin(), elsewhere.end());
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    throw_timeout(missing, deadline);
  }
}

// For another leader: those of this host that have not come to the call, or else this rank, where it has not done its
// part. It has while it waits for other hosts itself, be it in an earlier call, which others may have got through.
std::vector<RankNews> Group::missing_here(std::uint64_t call) const {
  const std::uint64_t exchanged = exchanged_call_.load();
  if (exchanged != 0 && exchanged <= call) return {};
  std::vector<RankNews> missing;
  for (const int rank : layout_.ranks_of(layout_.host_of(who_.rank))) {
    if (arrivals_.calls(layout_.index_of(rank)) < call) missing.push_back(news_of(rank, Trouble::missing));
  }
  if (missing.empty() && finished_call_.load() < call) missing.push_back(news_of(who_.rank, Trouble::missing));
  return missing;
}

// Of a rank of this host. Whom it gave up for first: this rank may be slower to notice that one.
void Group::tell_of_end(std::size_t index) {
  const std::vector<int>& here = layout_.ranks_of(layout_.host_of(who_.rank));
  const std::size_t cause = arrivals_.cause_of(index);
  if (cause != index) links_->tell(news_of(here[cause], Trouble::lost));
  links_->tell(news_of(here[index], Trouble::lost));
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
