#include "worker_runtime/backends/cpu/group/pair_calls.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/quiet_thread.hpp"
#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::cpu_backend {

namespace {

using core::Cause;
using core::Failure;
using core::RankState;

// Of calls that were still waiting, some of this host and some of another: those to which a peer has not come count.
PairEnd timed_out_as_one(PairEnd here, PairEnd afar, std::size_t here_count) {
  afar.call += here_count;
  for (std::size_t& call : afar.awaited) call += here_count;
  if (here.has_met == afar.has_met) {
    here.awaited.insert(here.awaited.end(), afar.awaited.begin(), afar.awaited.end());
  }
  PairEnd& end = here.has_met && !afar.has_met ? afar : here;
  end.kind = PairEnd::Kind::timed_out;
  return std::move(end);
}

// With its tag, if it has one.
std::string described(const core::Fingerprint& print, int tag) {
  return core::describe(print) + (tag <= 0 ? "" : ", tag " + std::to_string(tag));
}

}  // namespace

PairCalls::PairCalls(const Parts& parts)
    : parts_(parts),
      here_(parts.members.index, static_cast<int>(parts.members.here().size()), parts.memory, parts.peer_memory,
            {.is_here =
                 [this](int index) {
                   return parts_.arrivals.presence().of(index) == Presence::here &&
                          !parts_.arrivals.presence().has_ended(index);
                 },
             .has_left = [this](int index) { return parts_.arrivals.presence().of(index) == Presence::left; },
             .is_given_up = [this] { return parts_.status.has_failed() || is_over_.load(); }}) {}

void PairCalls::open(HostCalls& hosts, base::Deadline& deadline) {
  const Members& members = parts_.members;
  const int size = members.who.size;
  afar_.emplace(members.who.rank, size, members.network, members.who.name + " of " + to_string(members.who.round),
                PeerMessages::Questions{.must_stop = [this] { return parts_.status.has_failed() || is_over_.load(); },
                                        .is_cut_off = [this](int rank) { return parts_.states.is_cut_off(rank); },
                                        .await_end =
                                            [this](int rank, auto end, const auto& is_over) {
                                              parts_.arrivals.presence().wait_until_noted(rank, end, is_over);
                                              return parts_.states.end_of(rank);
                                            }});
  here_.announce(afar_->links().announcement());
  std::vector<PeerLinks::Announcement> all(static_cast<std::size_t>(size));
  constexpr std::size_t kWords = std::tuple_size_v<GatheredWords>;
  for (std::size_t begin = 0; begin < std::tuple_size_v<PeerLinks::Announcement>; begin += kWords) {
    const auto words = hosts.gather(
        [&](int index) {
          GatheredWords some{};
          std::copy_n(here_.announced(index).begin() + static_cast<std::ptrdiff_t>(begin), kWords, some.begin());
          return some;
        },
        deadline);
    for (int rank = 0; rank < size; ++rank) {
      const GatheredWords& of_rank = words[members.layout.place_of(rank)];
      std::copy(of_rank.begin(), of_rank.end(),
                all[static_cast<std::size_t>(rank)].begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
  for (int rank = 0; rank < size; ++rank) afar_->links().learn(rank, all[static_cast<std::size_t>(rank)]);
}

void PairCalls::require_listeners(std::span<const Collective> calls) const {
  for (const Collective& call : calls) {
    if (is_from_any(call)) {
      for (const int rank : ranks_afar()) afar_->links().require_listeners(rank);
      continue;
    }
    if (is_pair_call(call.kind) && !parts_.members.is_here(call.root)) afar_->links().require_listeners(call.root);
  }
}

void PairCalls::require_all_listeners() const {
  for (int rank = 0; parts_.members.has_hosts() && rank < parts_.members.who.size; ++rank) {
    if (rank != parts_.members.who.rank) afar_->links().require_listeners(rank);
  }
}

void PairCalls::run(std::span<const Collective> calls, base::Deadline& deadline) {
  if (!calls.empty() && is_from_any(calls.front())) return receive_from_any(calls.front(), deadline);
  std::vector<Collective> here, afar;
  std::vector<int> peers;
  for (const Collective& call : calls) {
    if (!is_pair_call(call.kind)) continue;
    if (!parts_.members.is_here(call.root)) {
      afar.push_back(call);
      continue;
    }
    here.push_back(call);
    peers.push_back(parts_.members.layout.index_of(call.root));
  }
  if (here.empty() && afar.empty()) return;
  if (afar.empty() || here.empty()) {
    const PairEnd end = afar.empty() ? here_.run(here, peers, deadline) : afar_->run(afar, deadline);
    if (end.kind != PairEnd::Kind::complete) fail(afar.empty() ? here : afar, end, deadline);
    return;
  }
  exchange_here_and_afar(here, peers, afar, deadline);
}

std::vector<int> PairCalls::ranks_afar() const {
  std::vector<int> afar;
  for (int rank = 0; rank < parts_.members.who.size; ++rank) {
    if (!parts_.members.is_here(rank)) afar.push_back(rank);
  }
  return afar;
}

void PairCalls::receive_from_any(const Collective& call, base::Deadline& deadline) {
  const PairEnd end =
      parts_.members.has_hosts() ? wait_for_any(call, deadline) : wait_for_any_here(call, nullptr, deadline);
  if (end.kind != PairEnd::Kind::complete) fail({&call, 1}, end, deadline);
  *call.source = end.peer;
}

PairEnd PairCalls::wait_for_any(const Collective& call, base::Deadline& deadline) {
  const std::vector<int> afar = ranks_afar();
  base::Deadline deadline_afar = deadline;
  FirstMessage first([this] {
    here_.wake();
    wake_afar();
  });
  PairEnds ends = run_here_and_afar([&] { return wait_for_any_here(call, &first, deadline); },
                                    [&] { return afar_->receive_from_any(call, afar, first, deadline_afar); });
  PairEnd end = ends.cause();
  if (end.kind == PairEnd::Kind::complete && end.peer == kAnyPeer) end.peer = ends.afar.peer;
  return end;
}

// The peer of its end is a rank of the group.
PairEnd PairCalls::wait_for_any_here(const Collective& call, FirstMessage* first, base::Deadline& deadline) {
  const int any = kAnyPeer;
  PairEnd end = here_.run({&call, 1}, {&any, 1}, deadline, first);
  if (end.peer != kAnyPeer) end.peer = parts_.members.here()[static_cast<std::size_t>(end.peer)];
  return end;
}

const PairEnd& PairCalls::PairEnds::cause() const {
  const bool is_afar_first = here.kind == PairEnd::Kind::complete || here.kind == PairEnd::Kind::interrupted;
  return is_afar_first && afar.kind != PairEnd::Kind::complete ? afar : here;
}

// So no wait is for both shared memory and a socket.
PairCalls::PairEnds PairCalls::run_here_and_afar(const std::function<PairEnd()>& here,
                                                 const std::function<PairEnd()>& afar) {
  PairEnds ends;
  std::exception_ptr error;
  const auto run_afar = [&] {
    try {
      ends.afar = afar();
    } catch (...) {
      error = std::current_exception();
    }
    if (!error && ends.afar.kind == PairEnd::Kind::complete) return;
    is_over_.store(true);
    here_.wake();
  };
  std::thread other;
  try {
    other = base::start_quiet_thread(run_afar);
  } catch (const std::system_error& refusal) {
    throw Error(std::string("no thread for messages to another host beside those to this one: ") + refusal.what());
  }
  std::exception_ptr error_here;
  try {
    ends.here = here();
  } catch (...) {
    error_here = std::current_exception();
  }
  if (error_here || ends.here.kind != PairEnd::Kind::complete) {
    is_over_.store(true);
    wake_afar();
  }
  other.join();
  is_over_.store(false);
  if (error_here) std::rethrow_exception(error_here);
  if (error) std::rethrow_exception(error);
  return ends;
}

void PairCalls::exchange_here_and_afar(std::span<const Collective> here, std::span<const int> peers,
                                       std::span<const Collective> afar, base::Deadline& deadline) {
  base::Deadline deadline_afar = deadline;
  PairEnds ends = run_here_and_afar([&] { return here_.run(here, peers, deadline); },
                                    [&] { return afar_->run(afar, deadline_afar); });
  const bool is_late = ends.here.kind == PairEnd::Kind::timed_out || ends.afar.kind == PairEnd::Kind::timed_out;
  if (is_late && !ends.here.awaited.empty() && !ends.afar.awaited.empty()) {
    std::vector<Collective> all(here.begin(), here.end());
    all.insert(all.end(), afar.begin(), afar.end());
    fail(all, timed_out_as_one(std::move(ends.here), std::move(ends.afar), here.size()), deadline);
  }
  const bool is_afar = &ends.cause() == &ends.afar;
  if (ends.cause().kind == PairEnd::Kind::complete) return;
  fail(is_afar ? afar : here, ends.cause(), is_afar ? deadline_afar : deadline);
}

// A message is between two ranks: the others are not told.
void PairCalls::fail(std::span<const Collective> calls, const PairEnd& end, const base::Deadline& deadline) {
  const Collective& call = calls[end.call];
  const int own_rank = parts_.members.who.rank;
  Failure failure{.rank = own_rank,
                  .number = end.number,
                  .operation = described(core::fingerprint_of(call), call.tag),
                  .limit = deadline.full_time()};
  const int peer_rank = is_from_any(call) ? end.peer : call.root;
  if (peer_rank != kAnyPeer) failure.peers = {peer_rank};
  const RankState peer = peer_rank == kAnyPeer ? RankState{} : state_after(end, peer_rank);
  parts_.call.set_aborted_elsewhere(end.kind == PairEnd::Kind::lost && peer.presence == Presence::aborted);
  std::vector<core::RankReport> reports;
  switch (end.kind) {
    case PairEnd::Kind::lost:
      failure.cause = Cause::ranks_lost;
      reports = {core::report_of(peer, 0, core::Part::missing)};
      break;
    case PairEnd::Kind::timed_out:
      failure.cause = Cause::timed_out;
      failure.peers.clear();
      for (const std::size_t awaited : end.awaited) {
        if (!is_from_any(calls[awaited])) failure.peers.push_back(calls[awaited].root);
      }
      for (int rank = 0; is_from_any(call) && rank < parts_.members.who.size; ++rank) {
        if (rank != own_rank && parts_.states.state_of(rank).presence != Presence::left) failure.peers.push_back(rank);
      }
      std::sort(failure.peers.begin(), failure.peers.end());
      failure.peers.erase(std::unique(failure.peers.begin(), failure.peers.end()), failure.peers.end());
      for (const int rank : failure.peers) {
        const core::Part part = end.has_met ? core::Part::begun : core::Part::missing;
        reports.push_back(core::report_of(parts_.states.state_of(rank), 0, part));
      }
      break;
    case PairEnd::Kind::mismatch: {
      failure.cause = Cause::mismatch;
      core::Fingerprint theirs = end.theirs;
      const int tag = std::exchange(theirs.root, own_rank);
      failure.what = core::describe_difference({own_rank, failure.operation}, {peer_rank, described(theirs, tag)});
      break;
    }
    case PairEnd::Kind::interrupted:
    case PairEnd::Kind::complete: throw_unusable(parts_.status);
  }
  core::throw_verdict(core::judge(parts_.members.failed_group(), failure, reports));
}

// The state of a peer, with what its own connection has told.
RankState PairCalls::state_after(const PairEnd& end, int peer) const {
  RankState state = parts_.states.state_of(peer);
  if (end.presence != Presence::here && !parts_.states.is_noted_lost(peer)) state.presence = end.presence;
  return state;
}

// It waits for messages, or for what is told of a rank's end.
void PairCalls::wake_afar() {
  afar_->wake();
  parts_.arrivals.presence().wake();
}

void PairCalls::close(Presence how) {
  here_.wake_all();
  if (afar_) afar_->close(how);
}

}  // namespace ddp::cpu_backend
