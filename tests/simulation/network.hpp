// A virtual network of hosts. What is sent over one connection arrives in its order, after delays of its own; between
// two hosts each direction may be cut off by itself. A connection breaks as TCP's do: by the end of a process its
// kernel says so to the other side, a host that falls silent says nothing, and whoever hears nothing for the heartbeat
// limit closes its end. Heartbeats themselves are not sent, they are reckoned: silence begins when nothing could come
// any more.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/membership/messages.hpp"
#include "tests/simulation/clock.hpp"
#include "tests/simulation/dice.hpp"

namespace ddp::simulation {

struct GuardiansWord {  // that the node has ended
  std::string node_key;
  int signal_number = 0;  // that killed its ddprun
};
using Message = std::variant<rendezvous::ToMembership, rendezvous::ToAgent, GuardiansWord>;

struct Closed {
  std::string why;
  bool by_peer = false;
};

constexpr const char* kStrangers = "strangers";  // the process of those that are no part of the job

class Network;

// One side of a connection, as wire/channel.hpp is.
class Channel {
 public:
  struct Handlers {
    std::function<void(Message& message)> message;
    std::function<void(const Closed& how)> closed;  // once, and nothing after it
  };

  Channel(Network& network, Process& owner) : network_(network), owner_(owner) {}

  void listen(Handlers handlers) { handlers_ = std::move(handlers); }
  void be_quiet() { is_quiet_ = true; }
  void send(Message message);

  // Nothing is heard here any more. What was sent arrives, then the end.
  void close();
  // As close(), but the other side does not hear of it before this process ends: it is no word on the workers here.
  void close_quietly();

  bool is_open() const { return is_open_; }
  // close() would tell the other side of the end.
  bool is_end_unknown() const { return is_socket_open_ && peer_->is_open_; }
  Process& owner() const { return owner_; }
  const Channel& peer() const { return *peer_; }
  int peer_host() const { return peer_->owner_.host; }

 private:
  friend class Network;
  struct End {};  // of the connection
  using Packet = std::variant<Message, std::string, End>;

  void transmit(Packet packet);
  void release();
  void arrive();
  void take(Packet packet);
  void fail(const Closed& how);
  void watch();

  Network& network_;
  Process& owner_;
  Channel* peer_ = nullptr;
  Handlers handlers_;
  std::deque<Packet> under_way_;  // to this side
  std::size_t held_up_ = 0;       // of these, in the network: the first ones
  bool is_flush_due_ = false;
  TimePoint last_arrival_;
  bool is_server_ = false;
  bool is_open_ = true;
  bool is_quiet_ = false;       // close_quietly() is what its end means
  bool is_socket_open_ = true;  // as the kernel has it
  bool is_reset_ = false;       // nothing more comes but the news of it
  bool is_silent_ = false;      // nothing can come
  std::uint64_t silences_ = 0;
};

struct NetworkOptions {
  Duration delay_min = 50us, delay_max = 2ms;
  Duration heartbeat_timeout = 3s;
  bool as_json = false;  // messages go through their texts
};

class Network {
 public:
  enum class Attempt {
    connected,
    refused,      // by the kernel: nobody listens there
    turned_away,  // by who listens there, in the handshake
    silent,
  };
  using Connected = std::function<void(Attempt how, Channel* channel)>;

  Network(Clock& clock, Dice& dice, int hosts, NetworkOptions options);

  // accept: is given the new connection's side here.
  void listen(Process& owner, int port, std::function<void(Channel& channel)> accept);
  // What comes to this port is lost, as behind a firewall.
  void swallow(int host, int port) { swallowed_.insert({host, port}); }
  // Who listens there takes nobody of this job, as with another token.
  void turn_away(int host, int port) { turned_away_.insert({host, port}); }
  // Another process that lives listens there.
  bool is_taken(int host, int port, const Process& by) const;
  void close_port(int host, int port) { listeners_.erase({host, port}); }

  // Calls `done` once, not from within; not at all where the process has ended.
  void connect(Process& from, int host, int port, Duration limit, Connected done);

  // --- faults ---

  void block(int from, int to);
  void unblock(int from, int to);
  void unblock_all();
  bool is_open(int from, int to) const {
    return blocks_[index(from, to)] == 0 && !is_lost_[at(from)] && !is_lost_[at(to)];
  }
  bool is_lost(int host) const { return is_lost_[at(host)]; }
  // The host is gone, and its processes with it, without a word.
  void lose(int host);
  // It is back, with none of its processes; whoever still speaks to them is told so.
  void bring_back(int host);
  // The connections between these hosts end on both sides, as when something between them forgets them.
  void break_connections(int a, int b);
  // Those that are open, by their client's side, between processes that live.
  std::vector<Channel*> connections();
  // Both sides hear of an error by the other; what is under way is lost.
  void reset(Channel& channel);
  std::vector<std::pair<int, int>> ports() const;  // host and port, of processes of the job
  // The host's kernel says that nobody listens there, as often as refuse() was called and accept() was not.
  void refuse(int host, int port) { ++refusals_[{host, port}]; }
  void accept(int host, int port);
  void accept_all() { refusals_.clear(); }
  void all_seem_silent_to(const Process& process);
  void end_of(Process& process);  // its kernel closes what it had open
  void delays(Duration shortest, Duration longest) { options_.delay_min = shortest, options_.delay_max = longest; }

  // Whoever is paused, goes on, ends: silence begins or ends.
  void watch_all();

  const NetworkOptions& options() const { return options_; }
  Clock& clock() { return clock_; }
  std::function<void()> changed = [] {};  // what can reach what

 private:
  friend class Channel;
  struct Listener {
    Process* owner;
    std::function<void(Channel& channel)> accept;
  };
  struct Try {
    Process* from;
    int host, port;
    Connected done;
    bool is_over = false;
  };

  static std::size_t at(int host) { return static_cast<std::size_t>(host); }
  std::size_t index(int from, int to) const { return at(from) * is_lost_.size() + at(to); }
  Duration delay() { return dice_.between(options_.delay_min, options_.delay_max); }
  void knock(const std::shared_ptr<Try>& attempt, int times);
  void end(const std::shared_ptr<Try>& attempt, Attempt how, Channel* channel);

  Clock& clock_;
  Dice& dice_;
  NetworkOptions options_;
  std::vector<int> blocks_;
  std::vector<bool> is_lost_;
  std::map<std::pair<int, int>, Listener> listeners_;
  std::set<std::pair<int, int>> swallowed_, turned_away_;
  std::map<std::pair<int, int>, int> refusals_;
  std::deque<Channel> channels_;  // for ever: events name them
};

}  // namespace ddp::simulation
