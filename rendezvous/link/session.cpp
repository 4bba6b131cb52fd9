#include "rendezvous/link/session.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/link/link_words.hpp"
#include "rendezvous/membership/membership_words.hpp"
#include "rendezvous/membership/outcome.hpp"
#include "rendezvous/membership/versions.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit = 5s;  // a host that is down answers nothing
constexpr milliseconds kPortLimit = 1s;     // before it is known which port: others wait for their turn
constexpr milliseconds kPauseFirst = 50ms;  // between attempts, growing
constexpr milliseconds kPauseMax = 1s;
// While a host is looked for, it answers every agent of the job within about this time each second.
constexpr milliseconds kSearchPausePerNode = 2ms, kSearchPauseMin = 100ms;
constexpr milliseconds kRefusalLimit = 10s;
constexpr milliseconds kAllRefuseLimit = 30s;  // nodes of a Slurm step may be started one after another
constexpr milliseconds kCallEach = 1s;         // of the endpoint, by who serves the job elsewhere
// After which the node that holds the endpoint serves the job again, where nobody else has welcomed it.
constexpr milliseconds kServeAgain = 2s;
constexpr milliseconds kTimePeriod = 5s;
constexpr int kDetoursMax = 4;
constexpr std::size_t kOtherCandidatesMax = 2 * kSuccessorsMax + 1;  // than the endpoint

}  // namespace

Session::Session(Options options, Hello hello, TimePoint now)
    : options_(options),
      hello_(std::move(hello)),
      clock_(now),
      join_deadline_(now + options.join_timeout),
      pause_(kPauseFirst) {
  for (int port = 0; port < std::max(1, options.endpoint_ports); ++port)
    endpoint_.push_back({"", static_cast<std::uint16_t>(port)});
  seek(endpoint_);
}

Session::Actions Session::step(const Event& event, TimePoint now) {
  out_.clear();
  if (state_ != State::over) std::visit([&](const auto& what) { take(what, now); }, event);
  return std::exchange(out_, {});
}

Session::Actions Session::tick(TimePoint now) {
  out_.clear();
  if (state_ == State::over) return {};
  if (call_at_ && now >= *call_at_) call_endpoint(now);
  if (asks_for_time_at() && now >= *asks_for_time_at()) ask_for_time(now);
  if (is_in_touch()) return std::exchange(out_, {});
  if (serve_at_ && now >= *serve_at_) {
    serve(now);
    return std::exchange(out_, {});
  }
  if (const auto ends = orphan_deadline(); ends && now >= *ends) {
    is_orphan_ = true;
    out_.emplace_back(StopOrphans{orphans_text(options_.orphan_limit)});
  }
  if (!do_workers_run() && now >= join_deadline_) {
    give_up({NobodyAnswers{}});
    return std::exchange(out_, {});
  }
  if (state_ == State::pausing && now >= pause_ends_) connect_to_next(now);
  return std::exchange(out_, {});
}

std::optional<TimePoint> Session::next_deadline() const {
  if (state_ == State::over) return {};
  if (is_in_touch()) return call_at_ ? call_at_ : asks_for_time_at();
  if (state_ == State::idle) return serve_at_;
  std::optional<TimePoint> first = serve_at_;
  const auto also = [&](TimePoint time) { first = first ? std::min(*first, time) : time; };
  if (state_ == State::pausing) also(pause_ends_);
  if (!do_workers_run()) also(join_deadline_);
  if (const auto ends = orphan_deadline()) also(*ends);
  return first;
}

std::optional<TimePoint> Session::orphan_deadline() const {
  if (!do_workers_run() || is_orphan_ || (!silent_since_ && !disowned_since_)) return {};
  const auto never = TimePoint::max();
  return std::min(silent_since_.value_or(never), disowned_since_.value_or(never)) + options_.orphan_limit;
}

std::optional<Session::Target> Session::whereabouts() const {
  return state_ == State::joined && !is_host_ ? std::optional(host_address_) : std::nullopt;
}

// --- connections ---

void Session::take(const Begin&, TimePoint now) { connect_to_next(now); }

void Session::take(const Hosting&, TimePoint now) {
  if (state_ == State::connecting || state_ == State::greeting || state_ == State::joined) out_.emplace_back(HangUp{});
  is_host_ = has_served_ = true;
  has_begun_round_ = false;
  if (!std::exchange(is_to_serve_, false)) holds_endpoint_ = true;
  if (!holds_endpoint_) call_at_ = now;
  serve_at_.reset();
  greet(now);
}

// Whoever goes on without this node is one of its successors, or with them. The membership here may have begun a round
// that this node has no part in: who serves the job again later must not take up the one before.
void Session::take(const SteppedDown& event, TimePoint now) {
  if (!std::exchange(is_host_, false)) return;
  call_at_.reset();
  if (do_workers_run()) out_.emplace_back(StopOrphans{event.why, !event.is_round_given_up});
  join_deadline_ = now + options_.join_timeout;
  std::vector<Target> others;
  if (event.other_host) others.push_back(*event.other_host);
  if (held_ && (event.is_round_given_up || held_->round < event.last_begun)) held_->is_left_behind = true, newest_ = {};
  for (const auto& successor : successors_left()) others.push_back({successor.address, successor.port});
  if (host_) others.push_back(*host_);
  const auto endpoint = endpoint_elsewhere();  // newcomers come there
  others.insert(others.end(), endpoint.begin(), endpoint.end());
  host_.reset();
  is_host_lost_ = false;
  if (holds_endpoint_) serve_at_ = now + kServeAgain;
  seek(std::move(others));
  state_ = State::idle;
  if (!candidates_.empty()) connect_to_next(now);
}

Session::SteppedDown Session::stepped_down(const HostCore::StepDown& how) {
  SteppedDown out{how.why, {}, how.is_round_given_up, how.last_begun};
  if (how.other_host) out.other_host = {how.other_host->address, how.other_host->port};
  return out;
}

// A ddprun that comes there anew knows nothing of this job, and has to join it.
void Session::call_endpoint(TimePoint now) {
  call_at_ = now + kCallEach;
  out_.emplace_back(Call{endpoint_[calls_++ % endpoint_.size()]});
}

Hello Session::hello_of_call() const {
  auto hello = hello_;
  hello.node_key.assign(32, '0');  // it is secret, and who is at the endpoint now may be a stranger
  hello.held = held_;
  if (hello.held)
    for (auto& nonce : hello.held->nonces) nonce = call_proof(nonce);
  hello.ended_nodes.clear();
  hello.is_host = true;
  hello.goes_on = has_begun_round_;
  return hello;
}

// Where others may serve the job: not if the endpoint is this node's own.
std::vector<Session::Target> Session::endpoint_elsewhere() const {
  return holds_endpoint_ ? std::vector<Target>() : endpoint_;
}

void Session::take(const Connected& event, TimePoint now) {
  if (state_ != State::connecting) return;
  peer_ = event.peer;
  greet(now);
}

void Session::greet(TimePoint now) {
  state_ = State::greeting;
  hello_.held = is_round_refused_ ? std::nullopt : held_;
  hello_.holds_endpoint = holds_endpoint_;
  time_asked_at_ = now;
  if (hello_.held && hello_.held->spent_restarts) age(*hello_.held->spent_restarts, now - held_since_);
  send(hello_);
}

void Session::take(const Ended& event, TimePoint now) {
  if (is_host_ || (state_ != State::connecting && state_ != State::greeting && state_ != State::joined)) return;
  note_answer_of_port(event, now);
  const bool is_refused = event.refusal && !held_;
  if (!is_refused || endpoint_.size() > 1)
    refused_since_.reset();
  else if (!refused_since_)
    refused_since_ = now;
  if (refused_since_ && (!event.refusal->can_be_forged || now - *refused_since_ >= refusal_limit()))
    return give_up({event.refusal->words});
  if (is_refused && do_all_ports_refuse(now)) return give_up({AllPortsRefuse{}});
  const bool was_joined = std::exchange(state_, State::idle) == State::joined;
  if (was_joined) join_deadline_ = now + options_.join_timeout;
  if (stop_asked_ && !stop_asked_->is_warning && !do_workers_run())
    join_deadline_ = std::min(join_deadline_, now + options_.heartbeat_timeout);
  if (event.how == How::refused || event.refusal)  // who only closes may be anybody
    silent_since_.reset();
  else if (!silent_since_)
    silent_since_ = now;
  const bool is_no_port_worth_a_try = event.is_host_unknown && endpoint_.size() > 1;
  if (is_no_port_worth_a_try) next_ = 0;
  for (auto& candidate : candidates_)
    if (candidate.target == target_ && event.how == How::silent && candidates_.size() > 1 && !is_no_port_worth_a_try)
      candidate.not_before = now + options_.heartbeat_timeout;
  // At once where it had lasted: what is lost by then is the connection, more often than the host.
  if (was_joined && event.how == How::closed && now - joined_at_ >= kPauseMax) return connect(target_, now);
  if (host_ && target_ == *host_ && event.how != How::closed && !is_host_lost_ && !successors_left().empty())
    return host_is_lost(now);
  if (holds_endpoint_ && !serve_at_ && !do_workers_run()) serve_at_ = now + kServeAgain;
  if (!is_no_port_worth_a_try && has_next_port(now)) return connect_to_next(now);
  pause(event.jitter, now);
}

void Session::note_answer_of_port(const Ended& event, TimePoint now) {
  if (endpoint_.size() == 1 || !target_.address.empty()) return;
  if (event.is_host_unknown)
    port_answers_.clear();
  else
    port_answers_[target_.port] = {event.how == How::silent && !event.refusal, event.refusal.has_value()};
  const auto is_any = [&](bool PortAnswer::*is_so) {
    return std::any_of(port_answers_.begin(), port_answers_.end(), [&](const auto& at) { return at.second.*is_so; });
  };
  if (port_answers_.size() < endpoint_.size() || is_any(&PortAnswer::is_silent) || !is_any(&PortAnswer::refuses))
    all_ports_refuse_since_.reset();
  else if (!all_ports_refuse_since_)
    all_ports_refuse_since_ = now;
}

bool Session::do_all_ports_refuse(TimePoint now) const {
  const auto limit = std::min(kAllRefuseLimit, options_.join_timeout / 4);
  return endpoint_.size() > 1 && all_ports_refuse_since_ && now - *all_ports_refuse_since_ >= limit;
}

void Session::give_up(const GiveUp& action) {
  out_.emplace_back(action);
  state_ = State::over;
}

// Of those at which the job may be, in this pass over them.
bool Session::has_next_port(TimePoint now) const {
  return endpoint_.size() > 1 &&
         std::any_of(candidates_.begin() + static_cast<std::ptrdiff_t>(next_), candidates_.end(),
                     [&](const Candidate& c) { return c.target.address.empty() && now >= c.not_before; });
}

void Session::connect(const Target& target, TimePoint now) {
  state_ = State::connecting;
  target_ = target;
  auto limit = held_ ? std::min(kConnectLimit, options_.heartbeat_timeout) : kConnectLimit;
  if (endpoint_.size() > 1 && target.address.empty()) limit = std::min(limit, kPortLimit);
  if (!do_workers_run())
    limit = std::min(limit, std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(join_deadline_ - now)));
  out_.emplace_back(Connect{target, limit});
}

// In turn, but those that answer go before those that were silent a moment ago.
void Session::connect_to_next(TimePoint now) {
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const auto at = (next_ + i) % candidates_.size();
    if (now < candidates_[at].not_before) continue;
    next_ = at + 1;
    return connect(candidates_[at].target, now);
  }
  state_ = State::pausing;
  pause_ends_ = std::min_element(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
                  return a.not_before < b.not_before;
                })->not_before;
}

void Session::pause(double jitter, TimePoint now) {
  state_ = State::pausing;
  detours_ = 0;
  const auto wait = std::min(pause_, pause_max());
  pause_ends_ = now + wait / 2 + std::chrono::duration_cast<milliseconds>(wait / 2 * std::clamp(jitter, 0.0, 1.0));
  pause_ = std::min(pause_ * 3 / 2, kPauseMax);
}

Session::Milliseconds Session::refusal_limit() const { return std::min(kRefusalLimit, options_.join_timeout / 4); }

// A daemon may have many jobs, whose agents all look for it.
Session::Milliseconds Session::pause_max() const {
  if (!held_ || !host_group_rank_) return kPauseMax;
  return std::clamp(kSearchPausePerNode * held_->group_world_size, kSearchPauseMin, kPauseMax);
}

// --- the next host ---

// Those that may serve once the host is lost, this node among them.
std::vector<Successor> Session::successors_left() const {
  auto left = successors_;
  std::erase_if(left, [&](const Successor& successor) {
    const bool is_own = held_ && successor.group_rank == held_->group_rank;
    return (host_ && *host_ == Target{successor.address, successor.port}) || (is_own && has_served_);
  });
  return left;
}

LostHost Session::lost_host() const {
  LostHost out;
  const bool is_own = held_ && host_group_rank_ == held_->group_rank;
  out.group_rank = is_own ? std::nullopt : host_group_rank_;
  for (const auto& successor : successors_)
    if (host_ && *host_ == Target{successor.address, successor.port}) out.group_rank = successor.group_rank;
  if (held_) out.round = held_->round;
  for (const int rank : ended_ranks_)
    if (rank != out.group_rank) out.others_gone.push_back(rank);
  if (!out.group_rank) return out;
  if (out.group_rank == host_group_rank_) out.node_key = host_key_;
  out.is_end_proven = ended_ranks_.count(*out.group_rank) != 0;
  if (out.group_rank == last_words_.first) {
    out.has_left = !last_words_.second.why;
    out.why = last_words_.second.why;
    out.exit_code = last_words_.second.exit_code;
  }
  return out;
}

// Who serves tells the nodes that would serve next.
std::vector<Session::Target> Session::farewell_targets() const {
  if (const auto there = whereabouts()) return {*there};
  std::vector<Target> out;
  if (!is_host_) return out;
  for (const auto& successor : successors_)
    if (!held_ || successor.group_rank != held_->group_rank) out.push_back({successor.address, successor.port});
  return out;
}

// The connection to that host ends too, if it has not yet. The next host may have stepped down for want of this proof.
void Session::take(const GuardianSaid& event, TimePoint now) {
  if (!knows_host(event.node_key) || !host_group_rank_ || !ended_ranks_.insert(*host_group_rank_).second) return;
  last_words_ = {host_group_rank_,
                 {ddprun_ended_text(event.signal_number), {}, exit_code_of_killed(event.signal_number)}};
  if (is_in_touch() || is_to_serve_ || !held_) return;
  has_served_ = false;
  const auto left = successors_left();
  if (!left.empty() && left.front().group_rank == held_->group_rank) serve(now);
}

void Session::host_is_lost(TimePoint now) {
  is_host_lost_ = true;
  pause_ = kPauseFirst;
  std::vector<Target> others;
  const auto left = successors_left();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].group_rank != held_->group_rank)
      others.push_back({left[i].address, left[i].port});
    else if (i == 0)
      return serve(now);
    else
      serve_at_ = now + static_cast<int>(i) * options_.heartbeat_timeout;
  }
  others.push_back(*host_);
  const auto endpoint = endpoint_elsewhere();
  if (!host_->address.empty()) others.insert(others.end(), endpoint.begin(), endpoint.end());
  if (holds_endpoint_ && !serve_at_) serve_at_ = now + static_cast<int>(left.size()) * options_.heartbeat_timeout;
  const auto silent_until = silent_since_ ? now + options_.heartbeat_timeout : now;
  seek(std::move(others));
  for (auto& candidate : candidates_)
    if (candidate.target == *host_) candidate.not_before = silent_until;
  connect_to_next(now);
}

void Session::seek(std::vector<Target> targets) {
  candidates_.clear();
  for (auto& target : targets) candidates_.push_back({std::move(target), {}});
  next_ = 0;
}

void Session::serve(TimePoint) {
  serve_at_.reset();
  if (state_ == State::connecting || state_ == State::greeting) out_.emplace_back(HangUp{});
  state_ = State::idle;
  is_to_serve_ = true;
  out_.emplace_back(Serve{lost_host()});
}

// --- what is heard ---

void Session::take(const Heard& event, TimePoint now) {
  if (state_ != State::greeting && state_ != State::joined) return;
  std::visit([&](const auto& message) { hear(message, now); }, event.message);
}

// Both sides say what they have, in place of what was lost with the connection before.
void Session::hear(const Welcome& message, TimePoint now) {
  if (const auto refused = refuse_version(message, hello_.versions)) return give_up({*refused});
  state_ = State::joined;
  joined_at_ = now;
  pause_ = kPauseFirst;
  detours_ = 0;
  hello_.was_welcomed = true;
  if (!is_host_) {
    host_ = target_;
    host_address_ = peer_;
    auto places = std::vector{target_};
    if (target_.address.empty()) endpoint_ = places;
    for (const auto& place : endpoint_elsewhere())
      if (place != target_) places.push_back(place);
    seek(std::move(places));
    note_endpoint();
  }
  is_host_lost_ = false;
  serve_at_.reset();
  silent_since_.reset();
  disowned_since_.reset();
  clock_.forget();
  clock_.note({time_asked_at_, now, message.job_time});
  is_time_told_ = true;
  out_.emplace_back(HandOn{message});
  // Else nobody there may know the round, and another one may have its number.
  const bool states_round = hello_.held && !has_ended_behind();
  if (states_round) {
    if (started_) send(*started_);
    if (first_step_) send(*first_step_);
    if (failed_) send(*failed_);
  }
  if (stop_asked_) send(*stop_asked_);  // before the end of a round that this is the reason of
  is_end_told_ = false;
  if (states_round && ended_) tell_end();
}

void Session::tell_end() {
  is_end_told_ = true;
  send(*ended_);
}

void Session::note_endpoint() {
  if (!held_) return;
  const bool is_at_endpoint = !is_host_ && target_.address.empty() && options_.endpoint_ports == 1;
  held_->host_group_rank = is_at_endpoint ? host_group_rank_ : std::nullopt;
  held_->endpoint_address = is_at_endpoint ? host_address_.address : "";
}

std::optional<TimePoint> Session::asks_for_time_at() const {
  if (state_ != State::joined || is_host_ || !is_time_told_) return {};
  return time_asked_at_ + kTimePeriod;
}

// An older endpoint does not answer, and is not asked again.
void Session::ask_for_time(TimePoint now) {
  time_asked_at_ = now;
  is_time_told_ = false;
  send(TimeAsked{++time_questions_});
}

void Session::hear(const TimeTold& message, TimePoint now) {
  if (message.number != time_questions_ || is_time_told_) return;
  is_time_told_ = true;
  clock_.note({time_asked_at_, now, message.job_time});
}

// Somebody who is no membership has answered: he lives, and will serve in his turn.
void Session::hear(const Elsewhere& message, TimePoint now) {
  if (is_host_) return;
  out_.emplace_back(HangUp{true});
  if (serve_at_) serve_at_ = std::max(*serve_at_, now + options_.heartbeat_timeout);
  Target there{message.address, message.port};
  if (host_ && there == host_address_) there = *host_;
  auto known =
      std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.target == there; });
  if (known == candidates_.end() && candidates_.size() < kOtherCandidatesMax + endpoint_.size())
    known = candidates_.insert(known, {there, {}});
  if ((known != candidates_.end() && now < known->not_before) || ++detours_ > kDetoursMax) return pause(0, now);
  connect(there, now);
}

// Another job that serves its nodes there is as good as nobody if this node's job may be elsewhere, or if this node has
// been in it: the job may come back.
// So are nodes of this job that know nothing of this node's round. Once its workers have ended it joins them without,
// but not before they must have noticed where the others of the round are.
void Session::hear(const Refused& message, TimePoint now) {
  // A daemon that is full says both. It knows nothing of the job, so no node has gone on there without this one.
  const bool is_round_unknown = message.is_round_unknown && held_ && !message.is_other_job;
  if (is_round_unknown && !disowned_since_) disowned_since_ = now;
  // It was stated for the restarts alone. What is refused without it is refused for good, with the reason.
  if (is_round_unknown && has_ended_behind()) is_round_refused_ = true;
  if (is_round_unknown && ended_ && now - *disowned_since_ >= options_.heartbeat_timeout) {
    held_->is_left_behind = true;
    newest_ = {};
  }
  if (((message.is_other_job && (endpoint_.size() > 1 || host_ || held_)) || is_round_unknown) && !is_host_) {
    out_.emplace_back(HangUp{message.is_other_job});
    return take(Ended{How::refused}, now);
  }
  if (message.is_other_job && !is_host_) out_.emplace_back(HangUp{true});
  give_up({message});
}

void Session::hear(const OpenStore& message, TimePoint) {
  if (message.round < newest_) return;
  // That store was for another round, perhaps of the same number.
  if (std::exchange(opening_, message.round) != message.round) opened_.reset();
  if (opened_ && opened_->round == message.round.number && (!held_ || held_->round < message.round)) {
    if (message.is_last) send(*opened_);
    return;
  }
  out_.emplace_back(HandOn{message});
}

void Session::hear(const StartRound& message, TimePoint now) {
  if (message.round < newest_) return;
  newest_ = message.round;
  successors_ = message.successors;
  host_group_rank_ = message.host_group_rank;
  ended_ranks_.clear();
  last_words_ = {};
  host_key_ = message.host_node_key;
  if (held_ && held_->round == message.round) return;  // it has been begun
  auto nonces = held_ ? std::move(held_->nonces) : std::vector<std::string>();
  if (message.nonce.empty())
    nonces.clear();  // the first one is that of this round
  else
    nonces.insert(nonces.begin(), message.nonce);
  if (nonces.size() > kNoncesMax) nonces.resize(kNoncesMax);
  held_ = Held{message.round, message.group_rank, message.group_world_size, message.restart_count, false,
               false,         std::move(nonces)};
  note_endpoint();
  has_begun_round_ = is_host_;
  held_->job_started = message.job_started;
  held_->spent_restarts = message.spent_restarts;
  held_since_ = now;
  started_.reset();
  first_step_.reset();
  failed_.reset();
  ended_.reset();
  is_orphan_ = is_round_refused_ = false;
  has_served_ = is_host_;
  out_.emplace_back(HandOn{message});
}

void Session::hear(const RoundEstablished& message, TimePoint) {
  if (held_ && held_->round.number == message.round) held_->is_established = true;
  out_.emplace_back(HandOn{message});
}

void Session::hear(const PrepareStop& message, TimePoint) { out_.emplace_back(HandOn{message}); }

void Session::hear(const StopAt& message, TimePoint) {
  if (held_ && held_->round.number == message.round) held_->stop_call = message.call;
  out_.emplace_back(HandOn{message});
}

// A node that others have gone on without must not count for its old round again, at whatever membership.
void Session::hear(const StopRound& message, TimePoint) {
  const bool is_of_held = held_ && held_->round.number == message.round;
  if (message.is_left_behind && is_of_held) {
    held_->is_left_behind = true;
    newest_ = {};  // those that go on may have begun earlier
    successors_.clear();
    serve_at_.reset();
  }
  if (is_of_held && has_ended_behind() && !is_end_told_) tell_end();  // twice, it is taken for that of a later round
  out_.emplace_back(HandOn{message});
}

void Session::hear(const FinishJob& message, TimePoint) {
  state_ = State::over;
  out_.emplace_back(HandOn{message});
}

void Session::hear(const CheckLinks& message, TimePoint) { out_.emplace_back(HandOn{message}); }

// The next host goes on at once, and the others look for it.
void Session::hear(const HostLeaves& message, TimePoint now) {
  if (is_host_ || !held_ || state_ != State::joined) return;
  const auto host = lost_host().group_rank;
  if (host) ended_ranks_.insert(*host);
  last_words_ = {host, message};
  ended_ranks_.insert(message.gone.begin(), message.gone.end());
  out_.emplace_back(HangUp{true});
  state_ = State::idle;
  join_deadline_ = now + options_.join_timeout;
  if (!successors_left().empty()) return host_is_lost(now);
  pause(0, now);
}

// --- what is said ---

void Session::take(const Said& event, TimePoint now) {
  if (const auto* opened = std::get_if<StoreOpened>(&event.message)) opened_ = *opened;
  if (const auto* started = std::get_if<RoundStarted>(&event.message)) started_ = *started;
  if (const auto* stepped = std::get_if<FirstStep>(&event.message)) first_step_ = *stepped;
  if (const auto* failed = std::get_if<RoundFailed>(&event.message)) failed_ = *failed;
  if (const auto* stop = std::get_if<StopAsked>(&event.message); stop && !stop->is_warning)
    return ask_to_stop(*stop, now);
  if (const auto* warning = std::get_if<StopAsked>(&event.message))
    if (!stop_asked_ || stop_asked_->is_warning) stop_asked_ = *warning;
  if (const auto* ended = std::get_if<RoundEnded>(&event.message)) {
    ended_ = *ended;
    if (state_ != State::joined) join_deadline_ = now + options_.join_timeout;
    is_end_told_ = state_ == State::joined;
  }
  if (state_ == State::joined) send(event.message);
  if (std::holds_alternative<Leaving>(event.message)) state_ = State::over;  // it does not come again
}

// What is said of it again, after a broken connection, may be all that membership hears of both requests.
void Session::ask_to_stop(StopAsked stop, TimePoint now) {
  if (!stop_asked_at_) stop_asked_at_ = now;
  stop.is_second = now - *stop_asked_at_ > kSameWish;
  stop_asked_ = stop;
  if (state_ == State::joined) send(stop);
}

}  // namespace ddp::rendezvous
