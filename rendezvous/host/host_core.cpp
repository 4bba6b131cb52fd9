#include "rendezvous/host/host_core.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/host/host_words.hpp"
#include "rendezvous/membership/membership_words.hpp"
#include "rendezvous/membership/versions.hpp"

namespace ddp::rendezvous {

namespace {

constexpr NodeId kOwnNode{0};
constexpr std::size_t kSparesMax = 256;
constexpr std::size_t kRefusedMax = 256;  // whose connections are still open
constexpr std::chrono::milliseconds kFarewellLimit{5'000};

bool is_refused(const Membership::Actions& actions, NodeId node) {
  return std::any_of(actions.begin(), actions.end(), [node](const MembershipAction& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && send->to == node && std::holds_alternative<Refused>(send->message);
  });
}

}  // namespace

HostCore::HostCore(MembershipOptions options, bool has_own_agent, TimePoint now, const VersionRange& versions)
    : has_own_agent_(has_own_agent), versions_(versions), began_(now), membership_(std::move(options), now) {}

HostCore::Actions HostCore::step(Event event, TimePoint now) {
  out_.clear();
  std::visit([this, now](auto& what) { take(std::move(what), now); }, event);
  return std::move(out_);
}

HostCore::Actions HostCore::tick(TimePoint now) {
  out_.clear();
  if (has_stepped_down_) return {};
  if (farewell_ends_ && *farewell_ends_ <= now) {
    drop_all();
  } else if (!is_finishing_) {
    follow(membership_.tick(now));
  }
  return std::move(out_);
}

std::optional<TimePoint> HostCore::next_deadline() const {
  if (has_stepped_down_) return {};
  return is_finishing_ ? farewell_ends_ : membership_.next_deadline();
}

std::chrono::milliseconds HostCore::job_time(TimePoint now) const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now - began_);
}

void HostCore::take(Came&& event, TimePoint now) {
  connections_[event.node] = {};
  const Hello& hello = event.hello;
  const bool is_known = membership_.knows(hello.node_key);
  if (has_stepped_down_ || is_finishing_ || (membership_.is_finished() && !is_known)) return close(event.node);
  if (hello.node_key == own_key_) return close(event.node);  // nobody else has it by right
  if (hello.is_host) return take_call(event);
  if (verdict_) return tell(event.node, *verdict_);
  if (const auto refused = membership_.other_job(hello)) return tell(event.node, *refused);
  const auto version = choose_version(hello, versions_, has_own_agent_ ? "ddprun" : "ddp-rendezvous");
  if (const auto* refused = std::get_if<Refused>(&version)) {
    out_.emplace_back(Print{node_refused_text(hello.host_name, event.address, *refused), event.node});
    return tell(event.node, *refused);
  }
  const auto connections_max = static_cast<std::size_t>(membership_.nodes_max_for(hello)) + kSparesMax;
  if (connections_.size() - refused_.size() > connections_max && !is_known)
    return tell(event.node, too_many_nodes(connections_max, hello.held.has_value()));
  const Welcome welcome{job_time(now), membership_.is_full() && !is_known, std::get<int>(version), versions_};
  auto actions = membership_.step(Joined{event.node, std::move(event.hello), std::move(event.address), false}, now);
  if (is_refused(actions, event.node)) return follow(std::move(actions), event.node);
  tell(event.node, welcome);
  follow(std::move(actions));
}

// From who serves the job in place of a host that was lost. Nodes that meet here anew would begin it a second time.
void HostCore::take_call(const Came& event) {
  using Aside = Membership::Aside;
  const auto& hello = event.hello;
  const bool is_of_this_job = has_own_agent_ && !membership_.other_job(hello) && hello.standby_port != 0;
  const auto aside = is_of_this_job ? membership_.aside_for(hello) : Aside::no;
  if (is_of_this_job && aside == Aside::no)
    if (auto answer = membership_.answer_to_call(hello)) tell(event.node, *std::move(answer));
  if (aside == Aside::no) return close(event.node);
  const bool is_round_given_up = aside == Aside::gives_up_round;
  if (is_round_given_up) follow(membership_.give_up_round());
  step_down({serves_already_text(hello.host_name, event.address), Elsewhere{event.address, hello.standby_port},
             is_round_given_up});
}

void HostCore::take(Heard&& event, TimePoint now) {
  const auto found = connections_.find(event.from);
  if (found == connections_.end() || found->second.is_leaving) return;
  if (std::holds_alternative<Hello>(event.message)) {
    out_.emplace_back(Drop{event.from});
    return take(Ended{event.from, kHelloOutOfPlace}, now);
  }
  if (const auto* asked = std::get_if<TimeAsked>(&event.message))
    return tell(event.from, TimeTold{asked->number, job_time(now)});
  follow(membership_.step(std::move(event), now));
}

void HostCore::take(Ended&& event, TimePoint now) {
  const auto found = connections_.find(event.node);
  if (found == connections_.end()) return;
  const bool was_leaving = found->second.is_leaving;
  forget(event.node);
  if (was_leaving || has_stepped_down_) return;
  auto why = std::move(event.why).value_or(kClosedHere);
  if (event.by_peer)
    follow(membership_.step(Disconnected{event.node, std::move(why)}, now));
  else
    follow(membership_.step(Left{event.node, std::move(why)}, now));
}

void HostCore::take(OwnAgentSaid&& event, TimePoint now) {
  if (has_stepped_down_) return;
  auto* hello = std::get_if<Hello>(&event.message);
  if (hello == nullptr) return follow(membership_.step(Heard{kOwnNode, std::move(event.message)}, now));
  own_key_ = hello->node_key;
  tell(kOwnNode, Welcome{job_time(now), false, versions_.high, versions_});
  follow(membership_.step(Joined{kOwnNode, std::move(*hello), {}, true}, now));
}

void HostCore::take(GuardianSaid&& event, TimePoint now) {
  if (knows(event.node_key)) follow(membership_.step(NodeEnded{event.node_key, event.signal_number}, now));
}

// If a round has begun here since the call, the nodes here are not those that were left behind.
void HostCore::take(CallAnswered&& event, TimePoint) {
  const bool has_newer_round = membership_.has_begun() && membership_.last_round().number != event.message.round;
  const bool is_to_obey = event.message.is_left_behind && membership_.is_answer_proven(event.message);
  if (!is_to_obey || has_newer_round || has_stepped_down_ || is_finishing_ || membership_.is_ending()) return;
  step_down({kWentOnWithoutThisNode, std::move(event.from)});
}

void HostCore::take(OwnAgentFinished&&, TimePoint now) {
  if (has_stepped_down_) {  // what has come since is told nothing
    drop_all();
    out_.emplace_back(Finish{});
    return;
  }
  is_finishing_ = true;
  farewell_ends_ = now + kFarewellLimit;
  for (const auto& [node, connection] : connections_)
    if (!connection.is_leaving) close(node);
  if (connections_.empty() && std::exchange(farewell_ends_, std::nullopt)) out_.emplace_back(Finish{});
}

void HostCore::follow(Membership::Actions actions, std::optional<NodeId> refused) {
  out_.reserve(out_.size() + actions.size());
  for (auto& action : actions) {
    if (auto* send = std::get_if<rendezvous::Send>(&action)) tell(send->to, std::move(send->message));
    if (const auto* dropped = std::get_if<rendezvous::Drop>(&action); dropped && connections_.count(dropped->node) != 0)
      drop(dropped->node);
    if (const auto* down = std::get_if<rendezvous::StepDown>(&action)) step_down({down->why});
    if (has_stepped_down_) return;
    if (auto* print = std::get_if<rendezvous::Print>(&action))
      out_.emplace_back(Print{std::move(print->text), refused});
  }
}

void HostCore::tell(NodeId node, ToAgent message) {
  if (node == kOwnNode) return out_.emplace_back(TellOwnAgent{std::move(message)}), void();
  if (connections_.count(node) == 0) return;
  const bool is_refusal = std::holds_alternative<Refused>(message);
  const bool is_last = std::holds_alternative<FinishJob>(message);
  out_.emplace_back(Tell{node, std::move(message)});
  if (is_refusal) return refuse(node);
  if (is_last) close(node);
}

// It has been told. Whoever does not close its connection then is not waited for where others are to be told too.
void HostCore::refuse(NodeId node) {
  close(node);
  refused_.insert(node);
  if (refused_.size() > kRefusedMax) drop(*refused_.begin());
}

void HostCore::close(NodeId node) {
  connections_.at(node).is_leaving = true;
  out_.emplace_back(Close{node});
}

void HostCore::drop(NodeId node) {
  out_.emplace_back(Drop{node});
  forget(node);
}

void HostCore::drop_all() {
  while (!connections_.empty()) drop(connections_.begin()->first);
}

void HostCore::forget(NodeId node) {
  connections_.erase(node);
  refused_.erase(node);
  if (connections_.empty() && std::exchange(farewell_ends_, std::nullopt)) out_.emplace_back(Finish{});
}

void HostCore::step_down(StepDown how) {
  if (!has_own_agent_) {
    FinishJob verdict;
    verdict.exit_code = exit_code_of(outcome::NotTogether{});
    verdict.what = std::move(how.why);
    verdict.try_this = kTryTogether;
    verdict_ = std::move(verdict);
    for (const auto& [node, connection] : connections_)
      if (!connection.is_leaving) tell(node, *verdict_);
    return;
  }
  has_stepped_down_ = true;
  farewell_ends_.reset();
  drop_all();
  how.last_begun = membership_.last_begun();
  out_.emplace_back(std::move(how));
}

}  // namespace ddp::rendezvous
