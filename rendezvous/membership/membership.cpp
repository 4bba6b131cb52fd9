#include "rendezvous/membership/membership.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kListens = 2s;  // for the call of another host of the job, which comes once a second
// For the guardian of the host that is lost, which first kills what is left there.
constexpr auto kAwaitsGuardian = 1s;

}  // namespace

Membership::Membership(MembershipOptions options, TimePoint now)
    : options_(std::move(options)),
      began_(now),
      own_absence_(options_.heartbeat_timeout,
                   options_.resume_window() + restate_timeout_of(options_.heartbeat_timeout), now),
      restarts_(options_.restarts_max, options_.restart_window),
      book_(now),
      recovery_(restate_timeout_of(options_.heartbeat_timeout), options_.lost, options_.endpoint_address),
      is_endpoint_ours_(!options_.endpoint_address.empty()) {
  if (options_.holds_endpoint) gathering_.listen_until(now + kListens);
  if (!options_.lost.node_key.empty() && !options_.lost.is_end_proven) guardian_awaited_until_ = now + kAwaitsGuardian;
  begin_gathering(now);
}

Membership::Actions Membership::step(MembershipEvent event, TimePoint now) {
  out_.clear();
  own_absence_.runs(looks_at_clock(), now);
  std::visit([&](auto& what) { take(std::move(what), now); }, event);
  return std::exchange(out_, {});
}

Membership::Actions Membership::tick(TimePoint now) {
  out_.clear();
  own_absence_.runs(looks_at_clock(), now);
  std::vector<Left> left;
  for (const auto id : nodes_.gone(now)) left.push_back({id, nodes_.absence_of(id)->why});
  for (const auto& node : left) take(node, now);
  if (recovery_.are_claims_open()) decide_claims(now);
  if (guardian_awaited_until_ && now >= *guardian_awaited_until_) stop_awaiting_guardian(now);
  if (recovery_.is_due(now)) give_up_awaited(now);
  if (const auto ends = round_.agreement.deadline(); ends && now >= *ends) give_up_agreement(now);
  if (deadline_ && now >= *deadline_) {
    if (phase_ == Phase::gathering)
      end_gathering(now);
    else if (phase_ == Phase::opening_store)
      let_go_of_store_opener(now);
    else if (phase_ == Phase::running)
      call_newcomers(now);
    else if (phase_ == Phase::stopping)
      refuse_those_that_never_stop(now);
  }
  return std::exchange(out_, {});
}

std::optional<TimePoint> Membership::next_deadline() const {
  std::optional<TimePoint> out;
  const auto consider = [&](std::optional<TimePoint> time) {
    if (time) out = out ? std::min(*out, *time) : *time;
  };
  consider(deadline_);
  consider(recovery_.deadline());
  if (!is_finished()) consider(guardian_awaited_until_);
  consider(round_.agreement.deadline());
  if (looks_at_clock()) consider(own_absence_.next_look());
  consider(nodes_.next_gone());
  return out;
}

// --- nodes come and go ---

void Membership::take(Joined&& event, TimePoint now) {
  if (const auto before = nodes_.find(event.hello.node_key)) return come_again(*before, event, now);
  if (phase_ == Phase::finished) {
    const auto& held = event.hello.held;
    if (verdict_ && held && held->round == last_round()) send_verdict(event.node, event.hello.wants_report);
    return;
  }
  if (auto refused = admission().objection(event.hello)) {
    if (!refused->is_other_job) print(node_refused_text(event.hello.host_name, event.seen_address, *refused));
    return send(event.node, std::move(*refused));
  }
  Node coming;
  coming.hello = std::move(event.hello);
  coming.seen_address = std::move(event.seen_address);
  coming.is_endpoint_host = event.is_endpoint_host;
  const auto& hello = nodes_.add(event.node, std::move(coming)).hello;
  quorum_.come(hello.node_key);
  round_with_logs_ = std::max<std::int64_t>(round_with_logs_, hello.highest_round);
  if (hello.was_welcomed && rounds_begun_ == 0) gathering_.hold_first_round_until(began_ + recovery_.timeout());
  const auto ended_nodes = hello.ended_nodes;
  if (hello.held) take_in_with_round(event.node, Held(*hello.held), now);  // it may have to end its round first
  for (const auto& ended : ended_nodes) note_end(ended, now);
  go_on(now);
}

void Membership::go_on(TimePoint now) {
  if (phase_ == Phase::gathering) gather(now);
  if (phase_ == Phase::running) call_newcomers(now);
}

// Returns what was known of it.
Node Membership::forget(NodeId id) {
  recovery_.withdraw(nodes_.at(id).hello.node_key);
  return nodes_.remove(id);
}

void Membership::note_loss(std::string what, TimePoint happened, TimePoint now) {
  round_.lose(std::move(what), job_time(now));
  round_.end_happened = happened;
  print(round_.loss->what);
}

void Membership::lose(const Node& node, const Left& event, TimePoint happened, TimePoint now) {
  note_loss(node_lost_text(node.group_rank.value_or(0), node.hello.host_name, event.why), happened, now);
  round_.loss->place = place_of(node.hello.host_name, node.seen_address);
  round_.loss->exit_code = event.exit_code;
}

void Membership::take(const Left& event, TimePoint now) {
  if (!nodes_.has(event.node) || phase_ == Phase::finished) return;
  const auto* absence = nodes_.absence_of(event.node);
  const auto happened = absence != nullptr    ? absence->until - options_.resume_window()
                        : event.is_end_proven ? now
                                              : now - options_.heartbeat_timeout;
  recovery_.leave(nodes_.at(event.node).hello.node_key, event.is_end_proven);
  const auto node = forget(event.node);
  quorum_.leave(node.hello.node_key, event.is_end_proven);
  round_.has_member_left = round_.has_member_left || node.is_member();
  if (phase_ == Phase::gathering) {
    print(node_left_text(node.hello.host_name, event.why));
    if (must_step_down()) return step_down(why_too_few());
    if (recovery_.are_claims_open()) decide_claims(now);
    return go_on(now);
  }
  if (!node.is_member()) return call_newcomers(now);
  if (phase_ == Phase::opening_store) {
    lose(node, event, happened, now);
    return begin_next_round(now);
  }
  if (!node.part->has_ended) {
    lose(node, event, happened, now);
    // Once, however many are lost together, unless another round can no longer follow, or can now.
    if (phase_ == Phase::running || round_.stop.reseat != may_another_round_follow(now))
      stop_round(SIGTERM, false, round_.loss->what, now);
  }
  end_round_if_all_have(now);
}

void Membership::take(const Disconnected& event, TimePoint now) {
  if (!nodes_.has(event.node) || phase_ == Phase::finished) return;
  nodes_.begin_absence(event.node, {now + options_.resume_window(), event.why});
  go_on(now);
}

void Membership::take(const NodeEnded& event, TimePoint now) {
  if (const auto id = nodes_.find(event.node_key)) {
    const auto exit_code = exit_code_of_killed(event.signal_number);
    return take(Left{*id, ddprun_ended_text(event.signal_number), true, exit_code}, now);
  }
  quorum_.leave(event.node_key, true);  // of one that fell silent
  if (phase_ == Phase::finished) return;
  if (event.node_key == options_.lost.node_key) {
    options_.lost.is_end_proven = true;
    explain_loss_of_host(event.signal_number);
    note_end_of_lost_host();
    return stop_awaiting_guardian(now);
  }
  if (phase_ == Phase::gathering) gather(now);
}

// A ddprun on its host says so. A membership that begins anew does not know the keys of all nodes of the round: that
// node was a member if its nonce is the round's.
void Membership::note_end(const EndedNode& ended, TimePoint now) {
  if (phase_ == Phase::finished) return;
  // In a later round than the last one here it may not have been alone: others may go on with that one.
  const bool had_gone_on = std::max(last_round(), options_.lost.round) < ended.round;
  if (knows(ended.node_key) && !had_gone_on) return take(NodeEnded{ended.node_key}, now);
  if (rounds_begun_ == 0) recovery_.note_end(ended);
  if (recovery_.are_claims_open()) return decide_claims(now);
  if (!recovery_.is_adopted() || ended.round != last_round() || !recovery_.proves_last_round({ended.nonce})) return;
  settle_end(ended.group_rank, ended.node_key, now);
  if (phase_ == Phase::gathering) return gather(now);
  consider_losses(now);
}

// Of a member of an adopted round.
void Membership::settle_end(int group_rank, const std::string& node_key, TimePoint now) {
  quorum_.end(group_rank, node_key);
  if (!recovery_.settle(group_rank)) return;
  round_.has_member_left = true;
  if (!round_.change) note_loss(lost_meanwhile_text(group_rank), now, now);
}

// The silence of the host that is lost may count from now on.
void Membership::stop_awaiting_guardian(TimePoint now) {
  guardian_awaited_until_.reset();
  if (phase_ == Phase::gathering && rounds_begun_ > 0) return must_step_down() ? step_down(why_too_few()) : gather(now);
  if (recovery_.is_adopted()) consider_losses(now);
}

bool Membership::knows(const std::string& node_key) const {
  const bool is_lost_host = !options_.lost.node_key.empty() && node_key == options_.lost.node_key;
  return is_lost_host || nodes_.find(node_key).has_value() || quorum_.knows(node_key);
}

bool Membership::is_full() const {
  return phase_ == Phase::running && !nodes_.is_member_absent() &&
         static_cast<int>(nodes_.member_count()) >= options_.nodes_max;
}

Membership::Aside Membership::aside_for(const Hello& other) const {
  if (phase_ == Phase::finished || job_stop() || is_own_call(other)) return Aside::no;
  if (rounds_begun_ == 0) return Aside::joins;
  if (!other.held || !admission().is_possible(other)) return Aside::no;
  const auto& held = *other.held;
  const bool is_proven = recovery_.nonce_of_call(held).has_value();
  const bool waits = phase_ == Phase::gathering && (nodes_.count_available() < options_.nodes_min || !may_go_on());
  if (waits && is_proven && !(held.round < last_round())) return Aside::joins;
  if (!other.goes_on) return Aside::no;
  if (is_proven) return last_round() < held.round ? Aside::gives_up_round : Aside::no;
  if (!options_.has_token) return Aside::no;
  if (waits) return Aside::joins;
  const bool is_newer_round = held.job_started == job_started_ && last_round() < held.round;  // in the same second
  const bool began_earlier = held.job_started != 0 && (held.job_started < job_started_ || is_newer_round);
  return began_earlier ? Aside::gives_up_round : Aside::no;
}

std::optional<StopRound> Membership::answer_to_call(const Hello& host) const {
  const bool has_round = phase_ != Phase::finished && phase_ != Phase::opening_store && rounds_begun_ > 0;
  if (!has_round || !host.held || !admission().is_possible(host) || !(host.held->round < last_round())) return {};
  const bool began_with_this_job = host.held->job_started != 0 && host.held->job_started == job_started_;
  const auto nonce = recovery_.nonce_of_call(*host.held);
  if (!nonce && !(options_.has_token && began_with_this_job)) return {};
  auto answer = went_on_without(host.held->round.number, true);
  if (nonce) answer.proof = answer_proof(*nonce);
  return answer;
}

// Whoever has the endpoint's address now can answer. With a token it has proven to know that.
bool Membership::is_answer_proven(const StopRound& answer) const {
  const auto has_called = [&](const auto& entry) {  // with what it holds
    const auto& [id, node] = entry;
    return node.is_endpoint_host && node.hello.held && is_answer_proof(answer.proof, node.hello.held->nonces);
  };
  return options_.has_token || is_answer_proof(answer.proof, recovery_.nonces()) ||
         std::any_of(nodes_.begin(), nodes_.end(), has_called);
}

// The endpoint leads to the port at which this node serves the job by now.
bool Membership::is_own_call(const Hello& other) const {
  const auto is_own = [&](const auto& entry) {
    const auto& [id, node] = entry;
    if (!node.is_endpoint_host || !other.held) return false;
    const auto& held = node.hello.held;
    const bool has_brought_it = held && held->round == other.held->round && held->group_rank == other.held->group_rank;
    return has_brought_it || (other.held->round == last_round() && node.group_rank == other.held->group_rank);
  };
  return std::any_of(nodes_.begin(), nodes_.end(), is_own);
}

Membership::Actions Membership::give_up_round() {
  out_.clear();
  for (const auto& [id, node] : nodes_)
    if (node.runs() && !node.is_endpoint_host) end_older_round(id, round_.id->number, false);
  return std::exchange(out_, {});
}

void Membership::begin_gathering(TimePoint now) {
  phase_ = Phase::gathering;
  gathering_.begin(now + options_.join_timeout);
  gather(now);
}

void Membership::gather(TimePoint now) {
  deadline_ = gathering_.ends();
  if (recovery_.are_claims_open()) {
    deadline_ = std::max(*deadline_, *recovery_.deadline());
    return;
  }
  if (const auto until = own_absence_.hears_until(now)) {
    deadline_ = *until;
    return;
  }
  if (const auto ends = stops_.leave_ends()) {
    if (now < *ends) {
      deadline_ = *ends;
      return;
    }
    if (nodes_.is_member_absent()) {             // who is absent is to hear of it
      if (now >= *deadline_) deadline_.reset();  // until that has come, or has been given up
      return;
    }
    end_leave(now);
    if (phase_ == Phase::finished) return;
  }
  // It may be the only one with what the workers have done, and others that were lost with it may be about to come too.
  if (nodes_.is_older_work_awaited()) gathering_.await_returning(now);
  const auto& cool_down = restarts_.cool_down();
  const int count = cool_down.is_anyone_out(now) ? static_cast<int>(fit_nodes(cool_down, now).size())
                                                 : nodes_.count_available();  // without a walk over all of them
  if (count >= options_.nodes_min && !may_go_on()) {
    if (!guardian_awaited_until_ && !std::exchange(is_split_said_, true))
      print(waiting_for_others_text(why_too_few(), options_.join_timeout));
    return;
  }
  is_split_said_ = false;
  const bool are_nodes_missed = quorum_.silent_count() > 0 || nodes_.has_older_rounds();
  const bool are_all_away = rounds_begun_ > 0 && !options_.greater_part_only && quorum_.are_all_away();
  const auto next = gathering_.next({options_, nodes_, count, rounds_begun_ == 0, are_nodes_missed, are_all_away}, now);
  if (next.is_complete) return form_round(now);
  if (next.print) print(*next.print);
  deadline_ = next.deadline;
}

void Membership::end_gathering(TimePoint now) {
  const int count = nodes_.count_available();
  if (now < gathering_.ends() || (count >= options_.nodes_min && may_go_on())) return gather(now);
  finish(count >= options_.nodes_min ? verdict_of_split(options_, why_too_few())
                                     : verdict_of_wait(options_, count, names_of(nodes_), restarts_.reason()),
         now);
}

// Not if a node has done its work already: the round is about to end.
void Membership::call_newcomers(TimePoint now) {
  if (phase_ != Phase::running) return;
  if (job_stop() || round_.agreement.call()) return deadline_.reset();  // another round would be of no use
  const bool is_ending = round_.has_member_left || recovery_.awaits_anyone() || stops_.leave_ends();
  const auto next = newcomers_.next({options_, nodes_, restarts_.cool_down(), is_ending}, now);
  deadline_ = next.deadline;
  if (next.print) print(*next.print);
  if (!next.taken_in) return;
  round_.change = {*next.taken_in, job_time(now)};
  round_.end_happened = now;
  stop_round(SIGTERM, false, next.taken_in, now);
}

// --- what nodes say ---

void Membership::take(const Heard& event, TimePoint now) {
  if (!nodes_.has(event.from) || phase_ == Phase::finished) return;
  auto& node = nodes_.at(event.from);
  if (const auto* leaving = std::get_if<Leaving>(&event.message)) {
    if (!node.is_endpoint_host) return take(Left{event.from, leaving->why, true, leaving->exit_code}, now);
    hand_on_job({leaving->why, {}, leaving->exit_code});
    return enter_finished();
  }
  if (node.is_claimant) return node.said.add(event.message);
  if (const auto* stop = std::get_if<StopAsked>(&event.message)) return hear(event.from, *stop, now);
  if (const auto* ended = std::get_if<RoundEnded>(&event.message)) return hear(event.from, *ended, now);
  if (const auto* work = std::get_if<LinksWork>(&event.message)) return hear(event.from, *work, now);
  if (!node.is_member()) return;
  if (const auto* opened = std::get_if<StoreOpened>(&event.message)) hear(event.from, *opened, now);
  if (const auto* started = std::get_if<RoundStarted>(&event.message)) hear(event.from, *started, now);
  if (const auto* stepped = std::get_if<FirstStep>(&event.message)) hear(event.from, *stepped, now);
  if (const auto* ready = std::get_if<StopReady>(&event.message)) hear(event.from, *ready, now);
  if (const auto* failed = std::get_if<RoundFailed>(&event.message)) hear(event.from, *failed, now);
}

std::string_view Membership::phase_name() const {
  constexpr std::string_view kNames[] = {"waiting for nodes", "starting", "running", "stopping", "finished"};
  return kNames[static_cast<std::size_t>(phase_)];
}

Membership::Summary Membership::summary() const {
  Summary out;
  out.phase = phase_name();
  out.round = round_.number();
  out.world_size = world_size_;
  out.nodes_min = options_.nodes_min;
  out.nodes_max = options_.nodes_max;
  out.restart_count = restarts_.count();
  out.restarts_max = options_.restarts_max;
  out.last_reason = restarts_.reason().value_or("");
  out.node_count = nodes_.size();
  return out;
}

Membership::View Membership::view() const {
  View out{summary(), {}};
  out.nodes.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_)
    out.nodes.push_back({node.hello.host_name, node.seen_address, node.is_member() ? node.group_rank : std::nullopt});
  return out;
}

}  // namespace ddp::rendezvous
