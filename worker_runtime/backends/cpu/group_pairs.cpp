#include "worker_runtime/backends/cpu/group.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "rendezvous/io/quiet_thread.hpp"
#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::cpu_backend {

namespace {

// Of calls that were still waiting, some of this host and some of another: those that a peer has not come to count.
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

// With its tag, where it has one.
std::string described(const Fingerprint& print, int tag) {
  return core::describe(print) + (tag <= 0 ? "" : ", tag " + std::to_string(tag));
}

}  // namespace

// Before any of them has begun: the group goes on without these calls.
void Group::require_listeners(std::span<const Collective> calls) const {
  for (const Collective& call : calls) {
    if (is_from_any(call)) {
      for (const int rank : ranks_afar()) peer_links_->require_listeners(rank);
      continue;
    }
    const bool is_afar = is_pair_call(call.kind) && layout_.host_of(call.root) != layout_.host_of(who_.rank);
    if (is_afar) peer_links_->require_listeners(call.root);
  }
}

// Not inlined: the small calls would pay for its registers and its stack.
//
// A rank without a port can't do its part. All ranks know the ports of all, so all of them throw, and the error ends the
// group.
void Group::exchange_unevenly(const Collective& collective, io::Deadline& deadline) {
  for (int rank = 0; has_hosts() && rank < who_.size; ++rank) {
    if (rank != who_.rank) peer_links_->require_listeners(rank);
  }
  const UnevenCollectives uneven(layout_, who_.rank);
  uneven.run(collective, {.exchange = [&](const Collective& even) { exchange(even, deadline); },
                          .exchange_in_pairs = [&](auto messages) { exchange_in_pairs(messages, deadline); },
                          .fail_by_mismatch =
                              [&](const std::string& what) {
                                Failure failure = failure_in_present_call(Cause::mismatch);
                                failure.what = what;
                                core::throw_verdict(core::judge(failed_group(), failure, {}));
                              }});
}

// The sends and receives among some calls, all at once.
void Group::exchange_in_pairs(std::span<const Collective> calls, io::Deadline& deadline) {
  if (!calls.empty() && is_from_any(calls.front())) return receive_from_any(calls.front(), deadline);
  std::vector<Collective> here, afar;
  std::vector<int> peers;
  for (const Collective& call : calls) {
    if (!is_pair_call(call.kind)) continue;
    if (layout_.host_of(call.root) != layout_.host_of(who_.rank)) {
      afar.push_back(call);
      continue;
    }
    here.push_back(call);
    peers.push_back(layout_.index_of(call.root));
  }
  if (here.empty() && afar.empty()) return;
  if (afar.empty() || here.empty()) {
    const PairEnd end = afar.empty() ? pairs_.run(here, peers, deadline) : peer_links_->run(afar, deadline);
    if (end.kind != PairEnd::Kind::complete) fail_pair(afar.empty() ? here : afar, end, deadline);
    return;
  }
  exchange_here_and_afar(here, peers, afar, deadline);
}

std::vector<int> Group::ranks_afar() const {
  std::vector<int> afar;
  for (int rank = 0; rank < who_.size; ++rank) {
    if (layout_.host_of(rank) != layout_.host_of(who_.rank)) afar.push_back(rank);
  }
  return afar;
}

void Group::receive_from_any(const Collective& call, io::Deadline& deadline) {
  const PairEnd end = has_hosts() ? wait_for_any(call, deadline) : wait_for_any_here(call, nullptr, deadline);
  if (end.kind != PairEnd::Kind::complete) fail_pair({&call, 1}, end, deadline);
  *call.source = end.peer;
}

PairEnd Group::wait_for_any(const Collective& call, io::Deadline& deadline) {
  const std::vector<int> afar = ranks_afar();
  io::Deadline deadline_afar = deadline;
  FirstMessage first([this] {
    pairs_.wake();
    peer_links_->wake();
  });
  PairEnds ends = run_here_and_afar([&] { return wait_for_any_here(call, &first, deadline); },
                                    [&] { return peer_links_->receive_from_any(call, afar, first, deadline_afar); });
  PairEnd end = ends.cause();
  if (end.kind == PairEnd::Kind::complete && end.peer == kAnyPeer) end.peer = ends.afar.peer;
  return end;
}

// The peer of its end is a rank of the group.
PairEnd Group::wait_for_any_here(const Collective& call, FirstMessage* first, io::Deadline& deadline) {
  const int any = kAnyPeer;
  PairEnd end = pairs_.run({&call, 1}, {&any, 1}, deadline, first);
  const auto& here = layout_.ranks_of(layout_.host_of(who_.rank));
  if (end.peer != kAnyPeer) end.peer = here[static_cast<std::size_t>(end.peer)];
  return end;
}

const PairEnd& Group::PairEnds::cause() const {
  const bool is_afar_first = here.kind == PairEnd::Kind::complete || here.kind == PairEnd::Kind::interrupted;
  return is_afar_first && afar.kind != PairEnd::Kind::complete ? afar : here;
}

// So no wait is for a neighbour and for a socket.
Group::PairEnds Group::run_here_and_afar(const std::function<PairEnd()>& here, const std::function<PairEnd()>& afar) {
  PairEnds ends;
  std::exception_ptr error;
  const auto run_afar = [&] {
    try {
      ends.afar = afar();
    } catch (...) {
      error = std::current_exception();
    }
    if (!error && ends.afar.kind == PairEnd::Kind::complete) return;
    is_pair_over_.store(true);
    pairs_.wake();
  };
  std::thread other;
  try {
    other = io::start_quiet_thread(run_afar);
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
    is_pair_over_.store(true);
    peer_links_->wake();
  }
  other.join();
  is_pair_over_.store(false);
  if (error_here) std::rethrow_exception(error_here);
  if (error) std::rethrow_exception(error);
  return ends;
}

void Group::exchange_here_and_afar(std::span<const Collective> here, std::span<const int> peers,
                                   std::span<const Collective> afar, io::Deadline& deadline) {
  io::Deadline deadline_afar = deadline;
  PairEnds ends = run_here_and_afar([&] { return pairs_.run(here, peers, deadline); },
                                    [&] { return peer_links_->run(afar, deadline_afar); });
  const bool is_late = ends.here.kind == PairEnd::Kind::timed_out || ends.afar.kind == PairEnd::Kind::timed_out;
  if (is_late && !ends.here.awaited.empty() && !ends.afar.awaited.empty()) {
    std::vector<Collective> all(here.begin(), here.end());
    all.insert(all.end(), afar.begin(), afar.end());
    fail_pair(all, timed_out_as_one(std::move(ends.here), std::move(ends.afar), here.size()), deadline);
  }
  const bool is_afar = &ends.cause() == &ends.afar;
  if (ends.cause().kind == PairEnd::Kind::complete) return;
  fail_pair(is_afar ? afar : here, ends.cause(), is_afar ? deadline_afar : deadline);
}

// Lets the ranks of other hosts know where this one listens. Collective.
void Group::open_to_other_hosts(const NetworkOptions& network, io::Deadline& deadline) {
  peer_links_.emplace(who_.rank, who_.size, network, who_.name + " of " + to_string(who_.round),
                      PeerLinks::Questions{.must_stop = [this] { return given_up_.load() || is_pair_over_.load(); },
                                           .is_cut_off = [this](int rank) { return is_cut_off(rank); }});
  pairs_.announce(peer_links_->announcement());
  std::vector<PeerLinks::Announcement> all(static_cast<std::size_t>(who_.size));
  constexpr std::size_t kWords = std::tuple_size_v<GatheredWords>;
  for (std::size_t begin = 0; begin < std::tuple_size_v<PeerLinks::Announcement>; begin += kWords) {
    meet(deadline);
    const auto words = gather(
        [&](int index) {
          GatheredWords some{};
          std::copy_n(pairs_.announced(index).begin() + static_cast<std::ptrdiff_t>(begin), kWords, some.begin());
          return some;
        },
        deadline);
    for (int rank = 0; rank < who_.size; ++rank) {
      const GatheredWords& of_rank = words[layout_.place_of(rank)];
      std::copy(of_rank.begin(), of_rank.end(),
                all[static_cast<std::size_t>(rank)].begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
  for (int rank = 0; rank < who_.size; ++rank) peer_links_->learn(rank, all[static_cast<std::size_t>(rank)]);
}

// Between two ranks only: the others do not matter, and are not told.
void Group::fail_pair(std::span<const Collective> calls, const PairEnd& end, const io::Deadline& deadline) {
  const Collective& call = calls[end.call];
  const Fingerprint own = core::fingerprint_of(call);
  Failure failure{
      .rank = who_.rank, .number = end.number, .operation = described(own, call.tag), .limit = deadline.full_time()};
  const int peer_rank = is_from_any(call) ? end.peer : call.root;
  if (peer_rank != kAnyPeer) failure.peers = {peer_rank};
  const RankState peer = peer_rank == kAnyPeer ? RankState{} : state_after(end, peer_rank);
  is_abort_elsewhere_ = end.kind == PairEnd::Kind::lost && peer.presence == Presence::aborted;
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
      for (int rank = 0; is_from_any(call) && rank < who_.size; ++rank) {
        if (rank != who_.rank && state_of(rank).presence != Presence::left) failure.peers.push_back(rank);
      }
      std::sort(failure.peers.begin(), failure.peers.end());
      failure.peers.erase(std::unique(failure.peers.begin(), failure.peers.end()), failure.peers.end());
      for (const int rank : failure.peers) {
        reports.push_back(core::report_of(state_of(rank), 0, end.has_met ? core::Part::begun : core::Part::missing));
      }
      break;
    case PairEnd::Kind::mismatch: {
      failure.cause = Cause::mismatch;
      Fingerprint theirs = end.theirs;
      const int tag = std::exchange(theirs.root, who_.rank);
      failure.what = core::describe_difference({who_.rank, failure.operation}, {peer_rank, described(theirs, tag)});
      break;
    }
    case PairEnd::Kind::interrupted:
    case PairEnd::Kind::complete: throw_unusable();
  }
  core::throw_verdict(core::judge(failed_group(), failure, reports));
}

// Of a peer, with what its own connection has told.
RankState Group::state_after(const PairEnd& end, int peer) const {
  RankState state = state_of(peer);
  const bool has_ended =
      has_hosts() && memory_->notes()[static_cast<std::size_t>(peer)].trouble.load() == Trouble::lost;
  if (end.presence != Presence::here && !has_ended) state.presence = end.presence;
  return state;
}

}  // namespace ddp::cpu_backend
