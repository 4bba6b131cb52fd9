// Membership: a node's ddprun is told to stop.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rendezvous/membership/membership.hpp"
#include "rendezvous/membership/membership_words.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kReportMargin = 10s;  // beyond the grace, for what is left to be killed and reported
// By so much workers elsewhere may be reported to fail before their node's peers leave.
constexpr auto kFailsBefore = 250ms;

}  // namespace

void Membership::hear(NodeId from, const StopAsked& message, TimePoint now) {
  if (message.is_warning) return take_warning(from, message, now);
  auto& node = nodes_.at(from);
  if (recovery_.are_claims_open() && node.is_endpoint_host) return node.said.add(message);
  JobStop stop{JobStop::Source::ddprun, message.signal_number, node.hello.host_name, from};
  stop.time_limit = message.time_limit;
  const auto why = stop.why();
  const bool is_spare = !node.is_member() && !node.is_endpoint_host;
  if ((phase_ != Phase::gathering || recovery_.are_claims_open()) && is_spare && !message.time_limit) {
    if (std::exchange(node.stop.says_again, false)) return;
    print(spare_leaves_text(why));
    return stop_spare(from, message.signal_number, now);
  }
  if (nodes_.is_leaving(from) && message.leaves && !job_stop()) {
    if (stops_.is_leave_urgent()) return;
    stops_.leave(true, now);  // it was warned before
    if (phase_ == Phase::running) ask_for_a_step(now);
    return;
  }
  if (message.leaves && may_leave(from)) {
    const bool has_no_part = node.is_endpoint_host && !node.is_member() && phase_ == Phase::running;
    return has_no_part ? leave_round_to_others(from, stop) : let_leave(from, stop, now);
  }
  const bool is_new = !job_stop();
  const auto next = stops_.ask(node.stop, stop, message.is_second, now);
  if (next == StopRequests::Next::nothing) return;
  if (is_new) round_.end_happened = now;
  const bool is_between_rounds = phase_ == Phase::gathering || phase_ == Phase::opening_store;
  if (next == StopRequests::Next::kill && !is_between_rounds) {
    stop.time_limit.reset();  // the second one is of a person
    return stop_round(stops_.signal_number(), true, second_stop_text(stop.why()), now, from);
  }
  if (is_between_rounds) {
    const bool were_all_to_leave = stops_.leave_ends() && rounds_begun_ > 0;
    auto verdict = were_all_to_leave ? verdict_of_round({round_, job_stop(), true, world_size_, options_.restarts_max})
                                     : verdict_of_stop(stop, options_.restarts_max);
    if (options_.nodes_max > 1 && !were_all_to_leave) verdict.what = stopped_by_text(why, rounds_begun_ == 0);
    return finish(std::move(verdict), now);
  }
  if (phase_ == Phase::running) return ask_for_a_step(now);
  // Workers that were to live on for another round are told that none follows.
  if (round_.stop.reseat) stop_round(message.signal_number, false, why, now, from);
  end_round_if_all_have(now);
}

// The scheduler will stop the job, or the node, later. A spare has nothing to prepare for that, until it takes part.
void Membership::take_warning(NodeId from, const StopAsked& message, TimePoint now) {
  auto& node = nodes_.at(from);
  node.stop.warning = message.signal_number;
  node.stop.leaves_if_warned = message.leaves;
  if (job_stop() || !node.is_member() || nodes_.is_leaving(from)) return;
  if (stops_.leave_ends()) return warn_in_leave(from, now);
  if (!stops_.warn()) return;
  print(warned_text(message.signal_number, node.hello.host_name, message.leaves && may_leave(from)));
  if (phase_ == Phase::running) ask_for_a_step(now);
}

// It leaves with the others. If too few would be left, all of them were warned, so the warning is one to the job.
void Membership::warn_in_leave(NodeId from, TimePoint now) {
  if (nodes_.at(from).stop.leaves_if_warned && may_leave(from)) {
    nodes_.begin_leaving(from);
    if (can_leavers_go()) return;
    nodes_.end_leaving(from);
  }
  stops_.warn();
  if (stops_.is_leave_urgent()) return;
  for (const auto id : std::set(nodes_.leaving())) nodes_.end_leaving(id);
  stops_.end_leave();
  round_.change.reset();
  if (phase_ != Phase::gathering) return;
  if (has_stopped_at_step(round_) && round_.stopped_at_step > 0)
    finish(verdict_of_round({round_, job_stop(), false, world_size_, options_.restarts_max}), now);
}

// A scheduler's signal may end workers before membership hears of it from any ddprun; where it is a warning, workers
// that died of it make it a stop: the round can't go on. What is left gets SIGTERM, because a warning may be ignored.
void Membership::take_signalled(NodeId from, const RoundEnded& message, TimePoint now) {
  const auto when = message.signalled_at.value_or(job_time(now));
  if (!stops_.workers_died(*message.signal_number, nodes_.at(from).hello.host_name, when)) return;
  if (phase_ == Phase::running) round_.end_happened = at(when, now);
  if (phase_ == Phase::running || round_.stop.reseat) stop_round(SIGTERM, false, job_stop()->why(), now);
}

void Membership::stop_spare(NodeId id, int signal_number, TimePoint now) {
  auto& spare = nodes_.at(id);
  spare.stop.asked = now;
  spare.stop.signal_number = signal_number;
  if (nodes_.older_round(id)) return;  // it ends its workers first
  dismiss(id, signal_number);
  call_newcomers(now);
}

// It has a verdict of its own: the job goes on without it.
void Membership::dismiss(NodeId id, int signal_number) {
  auto verdict = verdict_of_stop({JobStop::Source::ddprun, signal_number, {}}, options_.restarts_max);
  verdict.world_size = world_size_;
  verdict.has_left = true;
  send(id, std::move(verdict));
  forget(id);
}

// --- a node leaves ---

// Enough others are left. If it is the host, one of them is to serve the job next. Those that have been in no round
// need nobody: they wait for whoever comes to the endpoint.
bool Membership::may_leave(NodeId id) const {
  const auto& leaver = nodes_.at(id);
  const int left = nodes_.count_available() - (nodes_.is_available(id, leaver) ? 1 : 0);
  if (job_stop() || recovery_.are_claims_open() || left < options_.nodes_min) return false;
  return !leaver.is_endpoint_host || phase_ == Phase::gathering || next_host();
}

// One of those that the round's members were told.
std::optional<NodeId> Membership::next_host() const {
  std::optional<NodeId> out;
  for (const auto& [id, node] : nodes_) {
    if (node.is_endpoint_host || !node.is_member() || !node.part->told) continue;
    const auto& told = node.part->told->successors;
    const int rank = *node.group_rank;
    const bool is_successor = std::any_of(told.begin(), told.end(),
                                          [rank](const Successor& successor) { return successor.group_rank == rank; });
    if (!is_successor || !nodes_.is_available(id, node) || nodes_.is_absent(id)) continue;
    if (!out || *node.group_rank < *nodes_.at(*out).group_rank) out = id;
  }
  return out;
}

// Its workers are being stopped there, those of the others are stopped now. The next round waits for other nodes that
// are told, too.
void Membership::let_leave(NodeId id, const JobStop& stop, TimePoint now) {
  nodes_.begin_leaving(id);
  stops_.leave(true, now);
  const auto why = leaves_text(stop.why());
  print(why);
  if (phase_ != Phase::gathering && nodes_.at(id).is_member()) note_leave(why, now);
  if (phase_ == Phase::gathering) return gather(now);
  if (phase_ == Phase::opening_store) return begin_next_round(now);
  if (phase_ != Phase::running) return;
  round_.end_happened = now;
  ask_for_a_step(now);
}

void Membership::note_leave(const std::string& why, TimePoint now) {
  if (!round_.change) round_.change = {why, std::max(std::chrono::milliseconds(0), job_time(now) - kFailsBefore)};
}

// The round has agreed on a step, so all workers take part: the nodes that were warned leave at that step. If too few
// would be left, or one of them does not want to leave, the warning is one to the job.
void Membership::let_warned_leave(TimePoint now) {
  if (job_stop() || !stops_.is_warned()) return;
  std::vector<NodeId> warned;
  for (const auto& [id, node] : nodes_)
    if (node.is_member() && node.stop.warning != 0 && !nodes_.is_leaving(id)) warned.push_back(id);
  if (warned.empty()) return;
  const auto leaves = [&](NodeId id) {
    const bool may = nodes_.at(id).stop.leaves_if_warned && may_leave(id);
    if (may) nodes_.begin_leaving(id);
    return may;
  };
  if (!std::all_of(warned.begin(), warned.end(), leaves) || !can_leavers_go()) {
    for (const auto id : warned) nodes_.end_leaving(id);
    return;
  }
  stops_.forget_warning();
  stops_.leave(false, now);
  const auto& first = nodes_.at(warned.front());
  const JobStop warning{JobStop::Source::ddprun, first.stop.warning, first.hello.host_name, warned.front()};
  note_leave(leaves_text(warning.why()), now);
}

// If the host leaves, one of those that stay can serve the job next, or none of them has been in a round. Those that
// could serve next may leave too, or be lost.
bool Membership::can_leavers_go() const {
  const auto is_leaving_host = [&](const auto& entry) {
    return entry.second.is_endpoint_host && nodes_.is_leaving(entry.first);
  };
  const auto stays_from_a_round = [&](const auto& entry) {
    return !nodes_.is_leaving(entry.first) && (entry.second.group_rank || entry.second.hello.held);
  };
  return std::none_of(nodes_.begin(), nodes_.end(), is_leaving_host) || next_host() ||
         std::none_of(nodes_.begin(), nodes_.end(), stays_from_a_round);
}

// Nobody else is told to stop any more.
void Membership::end_leave(TimePoint now) {
  if (!can_leavers_go())
    return finish(verdict_of_stop({JobStop::Source::ddprun, SIGTERM, {}}, options_.restarts_max), now);
  const auto leaving = nodes_.leaving();
  const auto host =
      std::find_if(leaving.begin(), leaving.end(), [&](NodeId id) { return nodes_.at(id).is_endpoint_host; });
  stops_.end_leave();
  std::vector<int> gone;
  for (const auto id : leaving) {
    if (host != leaving.end() && id == *host) continue;
    const auto& node = nodes_.at(id);
    if (node.is_member()) gone.push_back(*node.group_rank);
    quorum_.leave(node.hello.node_key, true);
    dismiss(id, SIGTERM);
  }
  if (host == leaving.end()) return;
  gone.resize(std::min(gone.size(), kLeaversMax));
  hand_on_job({{}, std::move(gone)});
  dismiss(*host, SIGTERM);
  enter_finished();
}

// The host takes no part in the round, which goes on as it is.
void Membership::leave_round_to_others(NodeId host, const JobStop& stop) {
  print(leaves_text(stop.why()));
  hand_on_job({});
  dismiss(host, stop.signal_number);
  enter_finished();
}

// This process ends, and one of the other nodes is to serve the job next.
void Membership::hand_on_job(const HostLeaves& how) {
  const auto next = next_host();
  expect_sends_to_members();
  for (const auto& [id, node] : nodes_) {
    if (node.is_endpoint_host) continue;
    if (node.is_member() && (node.part->told || node.hello.held))
      send(id, how);
    else if (next)  // it knows no round, and not who may serve next
      send(id, Elsewhere{nodes_.at(*next).seen_address, nodes_.at(*next).hello.standby_port});
  }
}

// --- at one step ---

// Of a round that another membership began, once all have come; its workers may be on their way to a step already.
// After a warning workers are asked once all of them take part: from its answer on each waits at its step for that of
// all.
void Membership::ask_for_a_step(TimePoint now) {
  if (recovery_.awaits_anyone() || guardian_awaited_until_) return;
  const bool is_urgent = job_stop() || stops_.is_leave_urgent();
  follow(round_.agreement.ask(nodes_.running_group_ranks(), is_urgent, now), now);
}

void Membership::hear(NodeId from, const StopReady& message, TimePoint now) {
  if (message.round != round_.number() || phase_ != Phase::running) return;
  follow(round_.agreement.answers(*nodes_.at(from).group_rank, message.call, now), now);
}

void Membership::follow(StopAgreement::Next next, TimePoint now) {
  if (next == StopAgreement::Next::wait) return;
  if (next == StopAgreement::Next::give_up) return give_up_agreement(now);
  if (round_.agreement.call()) let_warned_leave(now);
  if ((job_stop() || stops_.is_leave_urgent()) && round_.agreement.call())
    round_.agreement.wait_until(now + nodes_.longest_grace() + kReportMargin);
  for (const auto& [id, node] : nodes_)
    if (node.runs()) tell_of_stop(id, node);
}

// As far as it has come; also on another connection.
void Membership::tell_of_stop(NodeId id, const Node& node) {
  const auto round = static_cast<std::uint32_t>(round_.number());
  const bool is_for_leaving = !job_stop() && stops_.is_leave_urgent();
  const int signal_number = is_for_leaving ? SIGTERM : stops_.signal_number();
  if (auto message = round_.agreement.message_for(*node.group_rank, round, signal_number))
    std::visit([&](auto& what) { send(id, std::move(what)); }, *message);
}

// After a warning all go on: workers wait for a decision a little longer than this membership for answers.
void Membership::give_up_agreement(TimePoint now) {
  if (!job_stop() && stops_.is_leave_urgent()) {
    stop_round(SIGTERM, false, round_.change ? std::optional(round_.change->who) : std::nullopt, now);
    return end_round_if_all_have(now);
  }
  if (!job_stop()) {
    print(kNoAgreement);
    return forget_stop_at_step();
  }
  stops_.workers_signalled(job_time(now));
  stop_round(stops_.signal_number(), false, job_stop()->why(), now, job_stop()->asker);
  end_round_if_all_have(now);
}

void Membership::forget_stop_at_step() {
  stops_.forget_warning();
  round_.agreement.give_up();
  for (auto& [id, node] : nodes_) node.stop.warning = 0;
}

}  // namespace ddp::rendezvous
