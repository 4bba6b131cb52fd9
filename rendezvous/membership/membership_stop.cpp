// Membership: a node's ddprun is told to stop.
#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSameWish = 200ms;    // `timeout` and schedulers send a signal twice; a later one means it
constexpr auto kAnswerLimit = 1s;    // agents ask their workers' libddp, which answers from a thread of its own
constexpr auto kReportMargin = 10s;  // beyond the grace, for what is left to be killed and reported
// Of a node, for which the others wait; but that of the endpoint's own node is believed.
constexpr std::chrono::milliseconds kGraceMax = 1h;

}  // namespace

void Membership::take(NodeId from, const StopAsked& message, TimePoint now) {
  if (message.is_warning) return take_warning(from, message, now);
  if (are_claims_open() && nodes_.at(from).is_endpoint_host) return hold_back(nodes_.at(from), message);
  if (std::exchange(nodes_.at(from).says_stop_again, false)) return;
  const auto why = signal_name(message.signal_number) + " to ddprun on host " + nodes_.at(from).hello.host_name;
  if ((phase_ != Phase::gathering || are_claims_open()) && !nodes_.at(from).is_member &&
      !nodes_.at(from).is_endpoint_host) {
    print(why + ", which was a spare: it leaves");
    return stop_spare(from, message.signal_number, now);
  }
  auto& first_came = nodes_.at(from).stop_asked;  // one to each node is a scheduler's way, two to one are a person's
  if (first_came && now - *first_came > kSameWish) return stop_round(stop_signal_, true, "a second " + why, now, from);
  if (!first_came) first_came = now;
  if (stop_signal_ != 0) return;
  stop_signal_ = message.signal_number;
  stop_why_ = why;
  stop_asker_ = from;
  end_happened_ = now;
  if (phase_ == Phase::gathering || phase_ == Phase::opening_store) {
    FinishJob verdict;
    verdict.exit_code = 128 + stop_signal_;
    verdict.restarts_max = options_.restarts_max;
    if (options_.nodes_max > 1)
      verdict.what = "stopped by " + why + (rounds_begun_ > 0 ? "" : " before the first round");
    return finish(std::move(verdict), now);
  }
  if (phase_ == Phase::running) return ask_for_a_step(now);
  // Workers that were to live on for another round are told that none follows.
  if (stop_.reseat) stop_round(message.signal_number, false, why, now, from);
  end_round_if_all_have(now);
}

// The scheduler will stop the job later. A spare has nothing to prepare for that, until it takes part.
void Membership::take_warning(NodeId from, const StopAsked& message, TimePoint now) {
  auto& node = nodes_.at(from);
  node.was_warned = true;
  if (stop_signal_ != 0 || !node.is_member || std::exchange(is_warned_, true)) return;
  print(signal_name(message.signal_number) + " to ddprun on host " + nodes_.at(from).hello.host_name +
        ": the job is to stop at its next step");
  if (phase_ == Phase::running) ask_for_a_step(now);
}

// A scheduler's signal may end workers before membership hears of it from any ddprun; where it is a warning, workers
// that died of it make it a stop: the round can't go on. What is left gets SIGTERM, because a warning may be ignored.
void Membership::take_signalled(NodeId from, const RoundEnded& message, TimePoint now) {
  note_signalled(message.signalled_at.value_or(job_time(now)));
  if (stop_signal_ != 0) return;
  stop_signal_ = *message.signal_number;
  const auto& host = nodes_.at(from).hello.host_name;
  stop_why_ = signal_name(stop_signal_) + " to the processes of host " + host + ", workers among them";
  died_of_it_why_ = stop_why_;
  if (phase_ == Phase::running) end_happened_ = at(*signalled_at_, now);
  if (phase_ == Phase::running || stop_.reseat) stop_round(SIGTERM, false, stop_why_, now);
}

void Membership::note_signalled(std::chrono::milliseconds when) {
  signalled_at_ = std::min(signalled_at_.value_or(when), when);
}

void Membership::stop_spare(NodeId id, int signal_number, TimePoint now) {
  auto& spare = nodes_.at(id);
  spare.stop_asked = now;
  spare.stop_signal = signal_number;
  if (older_rounds_.count(id) != 0) return;  // it ends its workers first
  dismiss(id, signal_number);
  call_newcomers(now);
}

// It has a verdict of its own.
void Membership::dismiss(NodeId spare, int signal_number) {
  FinishJob verdict;
  verdict.exit_code = 128 + signal_number;
  verdict.restarts_max = options_.restarts_max;
  verdict.world_size = world_size_;
  send(spare, verdict);
  forget(spare);
}

// --- at one step ---

// Of a round that another membership began, once all have come; its workers may be on their way to a step already.
// After a warning workers are asked once all of them take part: from its answer on each waits at its step for that of
// all.
void Membership::ask_for_a_step(TimePoint now) {
  if (!awaited_.empty()) return;
  is_step_wanted_ = true;
  if (stop_signal_ != 0 && !agreed_call_) return ask_for_calls(now);
  for (const auto& [id, node] : nodes_)
    if (node.is_member && !node.has_ended && !agreed_call_) tell_of_stop(id, node);
  go_on_with_stop(now);
}

void Membership::ask_for_calls(TimePoint now) {
  are_calls_wanted_ = true;
  agreement_ends_ = now + kAnswerLimit;
  for (const auto& [id, node] : nodes_)
    if (node.is_member && !node.has_ended) tell_of_stop(id, node);
}

void Membership::take(NodeId from, const StopReady& message, TimePoint now) {
  auto& node = nodes_.at(from);
  if (message.round != round_ || phase_ != Phase::running || node.has_ended || !is_step_wanted_ || agreed_call_) return;
  if (!message.call) {
    if (are_calls_wanted_) give_up_agreement(now);
    return;
  }
  node.takes_part = true;
  if (*message.call != 0) node.stop_call = message.call;
  go_on_with_stop(now);
}

// As far as the answers go. A membership before this one may have told a step to some of the nodes, whose workers may
// have stopped there. So that step stays the step of the round. If a worker is beyond it, the round has none.
void Membership::go_on_with_stop(TimePoint now) {
  std::optional<std::uint64_t> call;
  const auto runs = [](const Node& node) { return node.is_member && !node.has_ended; };
  if (!agreed_call_ && !are_calls_wanted_) {
    if (!is_any(found_unanswered_, [&](const Node& node) { return runs(node) && !node.takes_part; }))
      ask_for_calls(now);
    return;
  }
  if (!agreed_call_ && is_any(found_unanswered_, [&](const Node& node) { return runs(node) && !node.stop_call; }))
    return;
  for (const auto& [id, node] : nodes_)
    if (runs(node)) call = std::max(call, node.stop_call);
  if (!agreed_call_ && call && !calls_told_before_.empty()) {
    call = std::max(*call, *calls_told_before_.rbegin());
    if (*calls_told_before_.begin() != *call) return give_up_agreement(now);
  }
  if (!agreed_call_) agreed_call_ = call;
  agreement_ends_.reset();
  if (!agreed_call_) return;
  if (stop_signal_ != 0) agreement_ends_ = now + longest_grace() + kReportMargin;
  for (const auto& [id, node] : nodes_)
    if (runs(node)) tell_of_stop(id, node);
}

// As far as it has come; also on another connection.
void Membership::tell_of_stop(NodeId id, const Node& node) {
  const auto round = static_cast<std::uint32_t>(round_);
  if (agreed_call_) return send(id, StopAt{round, *agreed_call_, stop_signal_});
  if (are_calls_wanted_ ? !node.stop_call : !node.takes_part) send(id, PrepareStop{round, !are_calls_wanted_});
}

// After a warning all go on: workers wait for a decision a little longer than this membership for answers.
void Membership::give_up_agreement(TimePoint now) {
  if (stop_signal_ == 0) {
    print("the nodes did not agree on a step to stop at; the warning is passed over");
    return forget_stop_at_step();
  }
  note_signalled(job_time(now));
  stop_round(stop_signal_, false, stop_why_, now, stop_asker_);
  end_round_if_all_have(now);
}

void Membership::forget_stop_at_step() {
  is_warned_ = is_step_wanted_ = are_calls_wanted_ = false;
  agreed_call_.reset();
  agreement_ends_.reset();
  for (auto& [id, node] : nodes_) {
    node.was_warned = node.takes_part = false;
    node.stop_call.reset();
  }
}

// All workers have ended by themselves, some of them because they were told at which step to, perhaps by a membership
// before.
std::optional<FinishJob> Membership::verdict_of_stop_at_step() const {
  if ((!agreed_call_ && stopped_at_step_ == 0) || !failures_.empty() || stopped_ != 0 || tree_survived_ ||
      !lost_node_.empty())
    return {};
  FinishJob verdict;
  verdict.restarts_max = options_.restarts_max;
  verdict.world_size = world_size_;
  if (stopped_at_step_ == 0) return verdict;  // they had come to the end of their work before
  verdict.exit_code = kStoppedAtStep;
  verdict.what = "stopped on purpose: " + counted(stopped_at_step_, "worker") + " stopped at one step and ended well";
  return verdict;
}

std::chrono::milliseconds Membership::longest_grace() const {
  std::chrono::milliseconds grace{0};
  for (const auto& [id, node] : nodes_) {
    const auto its = node.is_endpoint_host ? node.hello.grace : std::min(node.hello.grace, kGraceMax);
    if (node.is_member) grace = std::max(grace, its);
  }
  return grace;
}

}  // namespace ddp::rendezvous
