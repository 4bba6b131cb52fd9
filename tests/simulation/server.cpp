#include "tests/simulation/server.hpp"

#include <algorithm>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using namespace rendezvous;

namespace {

constexpr Duration kUntilClosed = 1ms;

}  // namespace

Server::Server(World& world, Process& owner, MembershipOptions options, OwnNode own_node)
    : world_(world),
      owner_(owner),
      own_node_(std::move(own_node)),
      began_(world.clock.now()),
      core_(options, own_node_.stepped_down != nullptr, began_,
            own_node_.stepped_down != nullptr ? world.job.node_versions : world.job.daemon_versions),
      timer_(world.clock, owner),
      options_(std::move(options)) {
  wait_for_deadline();
}

std::chrono::milliseconds Server::job_time() const { return core_.job_time(world_.clock.now()); }

void Server::send(const ToMembership& message) {
  world_.clock.at(world_.clock.now(), &owner_, [this, message] {
    if (!is_stopped_) step(HostCore::OwnAgentSaid{message});
  });
}

void Server::take_in(Channel& channel, const Hello& hello) {
  const NodeId id = core_.new_node();
  world_.trace("   ", owner_.name, " hears the hello of ", world_.name_of(hello.node_key), ", which has ",
               hello.held ? to_string(hello.held->round) : "no round");
  if (!is_stranger(hello.node_key) && !hello.is_host && has_been_gone(hello))
    world_.checks.comes_back(world_.node_of(hello.node_key));
  const bool is_claim = hello.held && !hello.held->is_left_behind;
  connections_[id] = {&channel, hello.node_key, is_claim ? hello.held->round : RoundId{}};
  channel.listen({[this, id](const Message& message) {
                    const auto& said = std::get<ToMembership>(message);
                    world_.trace_heard(connections_.at(id).node_key, said);
                    step(Heard{id, said});
                  },
                  [this, id](const Closed& how) { lose(id, how); }});
  step(HostCore::Came{id, hello, world_.address_of(channel.peer_host())});
}

// As far as can be said from outside: whom membership keeps in its place is not among them.
bool Server::has_been_gone(const Hello& hello) const {
  const auto now = world_.clock.now();
  const auto loss = losses_.find(hello.node_key);
  if (loss != losses_.end() && (loss->second.was_silent || now - loss->second.at >= options_.resume_window()))
    return true;
  if (!hello.held || loss != losses_.end()) return false;
  return hello.held->group_rank == options_.lost.group_rank ||
         now - began_ >= rendezvous::Membership::restate_timeout_of(options_.heartbeat_timeout) ||
         hello.held->round < world_.checks.newest_complete();
}

bool Server::take_farewell(const NodeEnded& node) {
  if (is_stopped_ || !core_.knows(node.node_key)) return false;
  step(HostCore::GuardianSaid{node.node_key, node.signal_number});
  return true;
}

void Server::take_answer(const HostCore::CallAnswered& answer) {
  if (!is_stopped_) step(answer);
}

void Server::lose(NodeId id, const Closed& how) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto session = found->second;
  connections_.erase(found);
  if (is_stopped_) return;
  losses_[session.node_key] = {world_.clock.now(), !how.by_peer};
  step(HostCore::Ended{id, how.why, how.by_peer});
}

void Server::step(const HostCore::Event& event) { perform(core_.step(event, world_.clock.now())); }

void Server::perform(const HostCore::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  wait_for_deadline();
}

void Server::perform(const HostCore::TellOwnAgent& action) {
  world_.tells(*this, own_node_.node_key, action.message);
  world_.clock.at(world_.clock.now(), &owner_, [this, message = action.message] {
    if (!is_stopped_) own_node_.message(message);
  });
}

void Server::perform(const HostCore::Tell& action) {
  const auto found = connections_.find(action.node);
  if (found == connections_.end()) return;
  const auto& session = found->second;
  world_.tells(*this, session.node_key, action.message);
  const auto* stop = std::get_if<StopRound>(&action.message);
  const bool is_left_behind = stop != nullptr && stop->is_left_behind;
  const bool is_disowned = (std::holds_alternative<Refused>(action.message) || is_left_behind) &&
                           membership().last_round() < session.claimed;
  if (is_disowned) world_.checks.is_disowned(session.claimed);
  if ((is_disowned || is_left_behind) && !is_stranger(session.node_key))
    world_.checks.comes_back(world_.node_of(session.node_key));
  session.channel->send(action.message);
}

// What was said arrives, then the end; this host hears a little later that it has.
void Server::perform(const HostCore::Close& action) {
  perform(HostCore::Drop{action.node});
  world_.clock.after(kUntilClosed, &owner_, [this, node = action.node] {
    if (!is_stopped_) step(HostCore::Ended{node});
  });
}

void Server::perform(const HostCore::Drop& action) {
  const auto found = connections_.find(action.node);
  if (found == connections_.end()) return;
  found->second.channel->close();
  connections_.erase(found);
}

void Server::perform(const HostCore::Print& action) { world_.trace(owner_.name, " says: ", action.line); }

void Server::perform(const HostCore::StepDown& action) {
  world_.trace(owner_.name, " steps down: ", action.why);
  if (action.is_round_given_up) world_.checks.is_disowned(membership().last_round());
  world_.clock.at(world_.clock.now(), &owner_, [this, action] { own_node_.stepped_down(action); });
  stop();
}

void Server::finish(std::function<void()> done) {
  finished_ = std::move(done);
  step(HostCore::OwnAgentFinished{});
}

void Server::perform(const HostCore::Finish&) { world_.clock.at(world_.clock.now(), &owner_, finished_); }

void Server::stop() {
  is_stopped_ = true;
  for (const auto& [id, session] : std::exchange(connections_, {})) session.channel->close();
  timer_.cancel();
}

bool Server::has(const std::string& node_key) const {
  return own_node_.node_key == node_key ||
         std::any_of(connections_.begin(), connections_.end(),
                     [&](const auto& entry) { return entry.second.node_key == node_key; });
}

void Server::wait_for_deadline() {
  const auto deadline = is_stopped_ ? std::nullopt : core_.next_deadline();
  if (deadline == waiting_until_) return;
  waiting_until_ = deadline;
  timer_.set(deadline, [this] {
    waiting_until_.reset();
    perform(core_.tick(world_.clock.now()));
  });
}

}  // namespace ddp::simulation
