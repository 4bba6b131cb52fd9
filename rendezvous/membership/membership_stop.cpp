// Membership: a node's ddprun is told to stop.
#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership.hpp"
#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kReportMargin = 10s;  // beyond the grace, for what is left to be killed and reported

}  // namespace

void Membership::hear(NodeId from, const StopAsked& message, TimePoint now) {
  if (message.is_warning) return take_warning(from, message, now);
  auto& node = nodes_.at(from);
  if (recovery_.are_claims_open() && node.is_endpoint_host) return node.said.add(message);
  const JobStop stop{JobStop::Source::ddprun, message.signal_number, node.hello.host_name, from};
  const auto why = stop.why();
  if ((phase_ != Phase::gathering || recovery_.are_claims_open()) && !node.is_member() && !node.is_endpoint_host) {
    if (std::exchange(node.stop.says_again, false)) return;
    print(spare_leaves_text(why));
    return stop_spare(from, message.signal_number, now);
  }
  const bool is_new = !job_stop();
  const auto next = stops_.ask(node.stop, stop, message.is_second, now);
  if (next == StopRequests::Next::nothing) return;
  if (is_new) round_.end_happened = now;
  const bool is_between_rounds = phase_ == Phase::gathering || phase_ == Phase::opening_store;
  if (next == StopRequests::Next::kill && !is_between_rounds)
    return stop_round(stops_.signal_number(), true, second_stop_text(why), now, from);
  if (is_between_rounds) {
    auto verdict = verdict_of_stop(stop.signal_number, options_.restarts_max);
    if (options_.nodes_max > 1) verdict.what = stopped_by_text(why, rounds_begun_ == 0);
    return finish(std::move(verdict), now);
  }
  if (phase_ == Phase::running) return ask_for_a_step(now);
  // Workers that were to live on for another round are told that none follows.
  if (round_.stop.reseat) stop_round(message.signal_number, false, why, now, from);
  end_round_if_all_have(now);
}

// The scheduler will stop the job later. A spare has nothing to prepare for that, until it takes part.
void Membership::take_warning(NodeId from, const StopAsked& message, TimePoint now) {
  auto& node = nodes_.at(from);
  node.stop.was_warned = true;
  if (job_stop() || !node.is_member() || !stops_.warn()) return;
  print(warned_text(message.signal_number, node.hello.host_name));
  if (phase_ == Phase::running) ask_for_a_step(now);
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

// It has a verdict of its own.
void Membership::dismiss(NodeId spare, int signal_number) {
  auto verdict = verdict_of_stop(signal_number, options_.restarts_max);
  verdict.world_size = world_size_;
  send(spare, verdict);
  forget(spare);
}

// --- at one step ---

// Of a round that another membership began, once all have come; its workers may be on their way to a step already.
// After a warning workers are asked once all of them take part: from its answer on each waits at its step for that of
// all.
void Membership::ask_for_a_step(TimePoint now) {
  if (recovery_.awaits_anyone()) return;
  follow(round_.agreement.ask(nodes_.running_group_ranks(), job_stop().has_value(), now), now);
}

void Membership::hear(NodeId from, const StopReady& message, TimePoint now) {
  if (message.round != round_.number() || phase_ != Phase::running) return;
  follow(round_.agreement.answers(*nodes_.at(from).group_rank, message.call, now), now);
}

void Membership::follow(StopAgreement::Next next, TimePoint now) {
  if (next == StopAgreement::Next::wait) return;
  if (next == StopAgreement::Next::give_up) return give_up_agreement(now);
  if (job_stop() && round_.agreement.call()) round_.agreement.wait_until(now + nodes_.longest_grace() + kReportMargin);
  for (const auto& [id, node] : nodes_)
    if (node.runs()) tell_of_stop(id, node);
}

// As far as it has come; also on another connection.
void Membership::tell_of_stop(NodeId id, const Node& node) {
  const auto round = static_cast<std::uint32_t>(round_.number());
  if (auto message = round_.agreement.message_for(*node.group_rank, round, stops_.signal_number()))
    std::visit([&](auto& what) { send(id, std::move(what)); }, *message);
}

// After a warning all go on: workers wait for a decision a little longer than this membership for answers.
void Membership::give_up_agreement(TimePoint now) {
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
  for (auto& [id, node] : nodes_) node.stop.was_warned = false;
}

}  // namespace ddp::rendezvous
