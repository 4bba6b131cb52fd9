#include "tests/simulation/network.hpp"

#include <algorithm>

#include "rendezvous/wire/message_json.hpp"

namespace ddp::simulation {

// --- one side of a connection ---

void Channel::send(Message message) {
  if (!is_open_) return;
  if (!network_.options_.as_json || std::holds_alternative<GuardiansWord>(message)) return transmit(std::move(message));
  if (const auto* to_agent = std::get_if<rendezvous::ToAgent>(&message))
    return transmit(rendezvous::to_json(*to_agent));
  transmit(rendezvous::to_json(std::get<rendezvous::ToMembership>(message)));
}

void Channel::transmit(Packet packet) {
  auto& to = *peer_;
  to.under_way_.push_back(std::move(packet));
  to.last_arrival_ = std::max(to.last_arrival_, network_.clock_.now() + network_.delay());
  network_.clock_.at(to.last_arrival_, &to.owner_, [&to] { to.arrive(); });
}

// One event for each packet; those that find the way cut off leave theirs for later.
void Channel::arrive() {
  if (held_up_ > 0 || !network_.is_open(peer_->owner_.host, owner_.host)) {
    ++held_up_;
    return watch();
  }
  auto packet = std::move(under_way_.front());
  under_way_.pop_front();
  take(std::move(packet));
}

void Channel::take(Packet packet) {
  if (!is_open_ || is_reset_) return;
  if (std::holds_alternative<End>(packet)) {
    is_socket_open_ = false;
    return fail({"it closed the connection", true});
  }
  if (auto* text = std::get_if<std::string>(&packet)) {
    Message message;
    if (is_server_)
      message = rendezvous::to_membership_of(*text).value();
    else
      message = rendezvous::to_agent_of(*text).value();
    return handlers_.message ? handlers_.message(message) : void();
  }
  if (handlers_.message) handlers_.message(std::get<Message>(packet));
}

void Channel::fail(const Closed& how) {
  if (!std::exchange(is_open_, false)) return;
  const auto handlers = std::exchange(handlers_, {});
  if (how.by_peer)
    is_socket_open_ = false;
  else if (is_quiet_)
    peer_->watch();
  else
    release();
  if (handlers.closed) handlers.closed(how);
}

void Channel::close() {
  is_open_ = false;
  handlers_ = {};
  release();
}

void Channel::close_quietly() {
  is_open_ = false;
  handlers_ = {};
  peer_->watch();
}

void Channel::release() {
  if (std::exchange(is_socket_open_, false)) transmit(End{});
}

// Whether anything can come here at all; if not, for how long until the heartbeat limit. The last ping came at some
// moment of the time before.
void Channel::watch() {
  if (!is_open_ || !owner_.is_alive) return;
  const auto& peer = *peer_;
  const bool can_come = network_.is_open(peer.owner_.host, owner_.host) && peer.owner_.pauses == 0 &&
                        (peer.is_open_ || !peer.is_socket_open_);
  if (can_come && held_up_ > 0 && !std::exchange(is_flush_due_, true))
    network_.clock_.after(network_.dice_.between(Duration(0), 1s), &owner_,
                          [this] {  // it is sent again, some time later
                            is_flush_due_ = false;
                            if (!network_.is_open(peer_->owner_.host, owner_.host)) return;
                            for (; held_up_ > 0; --held_up_) {
                              auto packet = std::move(under_way_.front());
                              under_way_.pop_front();
                              take(std::move(packet));
                            }
                          });
  if (can_come == !is_silent_) return;
  is_silent_ = !can_come;
  ++silences_;
  if (can_come) return;
  const auto limit = network_.options_.heartbeat_timeout;
  network_.clock_.after(network_.dice_.between(limit / 2, limit), &owner_, [this, silence = silences_] {
    if (silence == silences_) fail({"it has been silent for too long"});
  });
}

// --- the network ---

Network::Network(Clock& clock, Dice& dice, int hosts, NetworkOptions options)
    : clock_(clock), dice_(dice), options_(options), blocks_(at(hosts) * at(hosts)), is_lost_(at(hosts)) {}

void Network::listen(Process& owner, int port, std::function<void(Channel& channel)> accept) {
  listeners_[{owner.host, port}] = {&owner, std::move(accept)};
}

bool Network::is_taken(int host, int port, const Process& by) const {
  const auto found = listeners_.find({host, port});
  return found != listeners_.end() && found->second.owner != &by && found->second.owner->is_alive;
}

void Network::connect(Process& from, int host, int port, Duration limit, Connected done) {
  const auto attempt = std::make_shared<Try>(Try{&from, host, port, std::move(done)});
  clock_.after(limit, &from, [this, attempt] { end(attempt, Attempt::silent, nullptr); });
  knock(attempt, 0);
}

void Network::end(const std::shared_ptr<Try>& attempt, Attempt how, Channel* channel) {
  if (std::exchange(attempt->is_over, true)) {
    if (channel != nullptr) channel->close();
  } else if (channel != nullptr && !channel->is_open()) {  // whoever accepted it is gone already
    attempt->done(Attempt::refused, nullptr);
  } else {
    attempt->done(how, channel);
  }
}

// The first packet is sent again after 1 s and 3 s, where nothing answers.
void Network::knock(const std::shared_ptr<Try>& attempt, int times) {
  auto& from = *attempt->from;
  clock_.after(delay(), nullptr, [this, attempt, times, &from] {
    if (attempt->is_over || !from.is_alive) return;
    const auto again = [this, attempt, times] {
      if (times < 2) clock_.after(times == 0 ? 1s : 2s, nullptr, [this, attempt, times] { knock(attempt, times + 1); });
    };
    if (!is_open(from.host, attempt->host) || !is_open(attempt->host, from.host)) return again();
    if (swallowed_.count({attempt->host, attempt->port}) != 0) return again();
    if (turned_away_.count({attempt->host, attempt->port}) != 0)
      return clock_.after(delay(), &from, [this, attempt] { end(attempt, Attempt::turned_away, nullptr); });
    const auto found = listeners_.find({attempt->host, attempt->port});
    if (found == listeners_.end() || refusals_.count({attempt->host, attempt->port}) != 0)
      return clock_.after(delay(), &from, [this, attempt] { end(attempt, Attempt::refused, nullptr); });
    auto& owner = *found->second.owner;
    clock_.at(clock_.now(), &owner, [this, attempt, &from, &owner] {
      const auto listener = listeners_.find({owner.host, attempt->port});
      if (attempt->is_over || !from.is_alive || listener == listeners_.end()) return;
      auto& near = channels_.emplace_back(*this, from);
      auto& far = channels_.emplace_back(*this, owner);
      far.is_server_ = true;
      near.peer_ = &far;
      far.peer_ = &near;
      listener->second.accept(far);
      near.watch();
      far.watch();
      clock_.after(delay(), &from, [this, attempt, &near] { end(attempt, Attempt::connected, &near); });
    });
  });
}

void Network::block(int from, int to) {
  ++blocks_[index(from, to)];
  watch_all();
  changed();
}

void Network::unblock(int from, int to) {
  auto& blocks = blocks_[index(from, to)];
  if (blocks > 0) --blocks;
  watch_all();
  changed();
}

void Network::unblock_all() {
  std::fill(blocks_.begin(), blocks_.end(), 0);
  watch_all();
  changed();
}

void Network::lose(int host) {
  is_lost_[at(host)] = true;
  std::erase_if(listeners_, [&](const auto& entry) { return entry.first.first == host; });
  watch_all();
  changed();
}

void Network::bring_back(int host) {
  is_lost_[at(host)] = false;
  for (auto& channel : channels_)
    if (channel.owner_.host == host && !channel.owner_.is_alive && channel.is_socket_open_) channel.release();
  watch_all();
  changed();
}

void Network::break_connections(int a, int b) {
  for (auto& channel : channels_) {
    if (!channel.is_open_ || channel.owner_.host != a || channel.peer_host() != b) continue;
    for (auto* side : {&channel, channel.peer_})
      clock_.after(delay(), &side->owner_, [side] { side->fail({"the connection was reset", true}); });
  }
}

std::vector<Channel*> Network::connections() {
  std::vector<Channel*> out;
  for (auto& channel : channels_)
    if (!channel.is_server_ && !channel.is_reset_ && channel.is_open_ && channel.peer_->is_open_ &&
        channel.owner_.is_alive && channel.peer_->owner_.is_alive)
      out.push_back(&channel);
  return out;
}

void Network::reset(Channel& channel) {
  for (auto* side : {&channel, channel.peer_}) {
    side->is_reset_ = true;
    clock_.after(delay(), &side->owner_, [side] { side->fail({"the connection was reset", true}); });
  }
}

std::vector<std::pair<int, int>> Network::ports() const {
  std::vector<std::pair<int, int>> out;
  for (const auto& [place, listener] : listeners_)
    if (listener.owner->is_alive && listener.owner->name != kStrangers) out.push_back(place);
  return out;
}

void Network::accept(int host, int port) {
  const auto found = refusals_.find({host, port});
  if (found != refusals_.end() && --found->second == 0) refusals_.erase(found);
}

void Network::all_seem_silent_to(const Process& process) {
  for (auto& channel : channels_)
    if (channel.is_open_ && &channel.owner_ == &process)
      clock_.at(clock_.now(), &channel.owner_, [&channel] { channel.fail({"it has been silent for too long"}); });
}

void Network::end_of(Process& process) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second.owner == &process; });
  for (auto& channel : channels_)
    if (&channel.owner_ == &process) channel.close();
}

void Network::watch_all() {
  for (auto& channel : channels_) channel.watch();
}

}  // namespace ddp::simulation
