// The real membership behind virtual connections, as rendezvous/control/membership_server.hpp and reception.hpp join it
// to real ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/membership.hpp"
#include "tests/simulation/clock.hpp"
#include "tests/simulation/network.hpp"

namespace ddp::simulation {

class World;

class Server {
 public:
  struct OwnNode {  // where membership is in an agent's process
    std::string node_key;
    std::function<void(const rendezvous::ToAgent& message)> message;
    std::function<void(const std::string& why)> stepped_down;
  };

  Server(World& world, Process& owner, rendezvous::MembershipOptions options, OwnNode own_node);

  void send(const rendezvous::ToMembership& message);  // of the own node
  void take_in(Channel& channel, const rendezvous::Hello& hello);
  bool take_farewell(const std::string& node_key);
  void stop();  // nothing is said, nothing is heard any more

  const rendezvous::Membership& membership() const { return membership_; }
  bool is_over() const { return sessions_.empty() && (membership_.is_finished() || membership_.is_abandoned()); }
  std::chrono::milliseconds job_time() const;

 private:
  struct Session {
    Channel* channel = nullptr;
    std::string node_key;
    RoundId claimed;
  };

  void step(const rendezvous::MembershipEvent& event);
  void perform(const rendezvous::Membership::Actions& actions);
  void tell(rendezvous::NodeId id, const rendezvous::ToAgent& message);
  void lose(rendezvous::NodeId id, const Closed& how);
  void watch_resumption(const std::string& node_key);
  bool has_been_gone(const rendezvous::Hello& hello) const;
  void leave(rendezvous::NodeId id);
  void dissolve(const std::string& why);
  void wait_for_deadline();

  World& world_;
  Process& owner_;
  OwnNode own_node_;
  const TimePoint began_;
  rendezvous::Membership membership_;
  Timer timer_;
  std::optional<TimePoint> waiting_until_;
  std::uint64_t nodes_seen_ = 0;
  std::map<rendezvous::NodeId, Session> sessions_;
  struct Loss {
    TimePoint at;
    bool was_silent = false;
  };
  std::map<std::string, Loss> losses_;  // by node key; the last of each
  const rendezvous::MembershipOptions options_;
  bool is_stopped_ = false;
};

}  // namespace ddp::simulation
