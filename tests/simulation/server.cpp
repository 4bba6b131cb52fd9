#include "tests/simulation/server.hpp"

#include <algorithm>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using namespace rendezvous;

namespace {

constexpr NodeId kOwnNode{0};

}  // namespace

Server::Server(World& world, Process& owner, MembershipOptions options, OwnNode own_node)
    : world_(world),
      owner_(owner),
      own_node_(std::move(own_node)),
      began_(world.clock.now()),
      membership_(options, began_),
      timer_(world.clock, owner),
      options_(std::move(options)) {
  wait_for_deadline();
}

std::chrono::milliseconds Server::job_time() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(world_.clock.now() - began_);
}

void Server::send(const ToMembership& message) {
  world_.clock.at(world_.clock.now(), &owner_, [this, message] {
    if (is_stopped_) return;
    if (const auto* hello = std::get_if<Hello>(&message)) {
      tell(kOwnNode, Welcome{job_time()});
      step(Joined{kOwnNode, *hello, {}, true});
    } else {
      step(Heard{kOwnNode, message});
    }
  });
}

void Server::take_in(Channel& channel, const Hello& hello) {
  const NodeId id{++nodes_seen_};
  world_.trace("   ", owner_.name, " hears the hello of ", world_.name_of(hello.node_key), ", which has ",
               hello.held ? to_string(hello.held->round) : "no round");
  if (!is_stranger(hello.node_key) && has_been_gone(hello)) world_.checks.comes_back(world_.node_of(hello.node_key));
  sessions_[id] = {&channel, hello.node_key, hello.held ? hello.held->round : RoundId{}};
  channel.listen({[this, id](const Message& message) {
                    const auto& said = std::get<ToMembership>(message);
                    world_.trace_heard(sessions_.at(id).node_key, said);
                    step(Heard{id, said});
                  },
                  [this, id](const Closed& how) { lose(id, how); }});
  if (is_stopped_ || (membership_.is_finished() && !membership_.knows(hello.node_key))) return leave(id);
  if (const auto refused = membership_.other_job(hello)) return tell(id, *refused);
  const Welcome welcome{job_time(), membership_.is_full() && !membership_.knows(hello.node_key)};
  const auto actions =
      membership_.step(Joined{id, hello, world_.address_of(channel.peer_host()), false}, world_.clock.now());
  const bool is_refused = std::any_of(actions.begin(), actions.end(), [id](const MembershipAction& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && send->to == id && std::holds_alternative<Refused>(send->message);
  });
  if (!is_refused) tell(id, welcome);
  perform(actions);
}

// As far as can be said from outside: whom membership keeps in its place is not among them.
bool Server::has_been_gone(const Hello& hello) const {
  const auto now = world_.clock.now();
  const auto loss = losses_.find(hello.node_key);
  if (loss != losses_.end() && (loss->second.was_silent || now - loss->second.at >= options_.resume_window()))
    return true;
  if (!hello.held || loss != losses_.end()) return false;
  return hello.held->group_rank == options_.lost_group_rank ||
         now - began_ >= rendezvous::Membership::restate_timeout_of(options_.heartbeat_timeout) ||
         hello.held->round < world_.checks.newest_complete();
}

bool Server::take_farewell(const std::string& node_key) {
  if (is_stopped_ || !membership_.knows(node_key)) return false;
  step(Farewell{node_key});
  return true;
}

void Server::lose(NodeId id, const Closed& how) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const auto session = found->second;
  sessions_.erase(found);
  if (is_stopped_) return;
  losses_[session.node_key] = {world_.clock.now(), !how.by_peer};
  if (how.by_peer && own_node_.message && !is_stranger(session.node_key)) watch_resumption(session.node_key);
  if (how.by_peer)
    step(Disconnected{id, how.why});
  else
    step(Left{id, how.why, false});
}

// Membership takes the end of a connection that is not resumed for the end of its node. That is wrong where the node
// was frozen, and so could not resume it: it finds this host silent when it goes on, and may take its place.
void Server::watch_resumption(const std::string& node_key) {
  const auto lost_at = world_.clock.now();
  world_.clock.after(options_.resume_window(), &owner_, [this, node_key, lost_at] {
    const bool has_come = std::any_of(sessions_.begin(), sessions_.end(),
                                      [&](const auto& entry) { return entry.second.node_key == node_key; });
    const auto& node = world_.node_of(node_key);
    const auto& process = node.process();
    const bool was_frozen = process.pauses > 0 || (process.went_on && *process.went_on >= lost_at);
    if (!has_come && !is_stopped_ && node.is_alive() && was_frozen) world_.checks.takes_the_living_for_dead();
  });
}

void Server::step(const MembershipEvent& event) { perform(membership_.step(event, world_.clock.now())); }

void Server::perform(const Membership::Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) tell(send->to, send->message);
    if (const auto* say = std::get_if<Say>(&action)) world_.trace(owner_.name, " says: ", say->text);
    if (const auto* drop = std::get_if<Drop>(&action)) {
      const auto found = sessions_.find(drop->node);
      if (found == sessions_.end()) continue;
      found->second.channel->close();
      sessions_.erase(found);
    }
    if (const auto* down = std::get_if<StepDown>(&action)) dissolve(down->why);
  }
  wait_for_deadline();
}

void Server::tell(NodeId id, const ToAgent& message) {
  if (id == kOwnNode) {
    world_.tells(*this, own_node_.node_key, message);
    return world_.clock.at(world_.clock.now(), &owner_, [this, message] {
      if (!is_stopped_) own_node_.message(message);
    });
  }
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  world_.tells(*this, found->second.node_key, message);
  const auto* stop = std::get_if<StopRound>(&message);
  const bool is_claim_void = std::holds_alternative<Refused>(message) || (stop != nullptr && stop->is_left_behind);
  if (is_claim_void && membership_.last_round() < found->second.claimed)
    world_.checks.is_disowned(found->second.claimed);
  found->second.channel->send(message);
  if (std::holds_alternative<Refused>(message) || std::holds_alternative<FinishJob>(message)) leave(id);
}

void Server::dissolve(const std::string& why) {
  world_.trace(owner_.name, " steps down: ", why);
  if (!own_node_.stepped_down) {
    FinishJob verdict;
    verdict.exit_code = kRendezvousFailed;
    verdict.what = why;
    while (!sessions_.empty()) tell(sessions_.begin()->first, verdict);
    return;
  }
  world_.clock.at(world_.clock.now(), &owner_, [this, why] { own_node_.stepped_down(why); });
  stop();
}

// What was said arrives, then the end.
void Server::leave(NodeId id) {
  sessions_.at(id).channel->close();
  sessions_.erase(id);
}

void Server::stop() {
  is_stopped_ = true;
  for (const auto& [id, session] : std::exchange(sessions_, {})) session.channel->close();
  timer_.cancel();
}

void Server::wait_for_deadline() {
  const auto deadline = is_stopped_ ? std::nullopt : membership_.next_deadline();
  if (deadline == waiting_until_) return;
  waiting_until_ = deadline;
  timer_.set(deadline, [this] {
    waiting_until_.reset();
    perform(membership_.tick(world_.clock.now()));
  });
}

}  // namespace ddp::simulation
