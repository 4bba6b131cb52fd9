// The real core of a host of membership behind virtual connections: performs its actions as
// rendezvous/control/membership_server.cpp does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/host/host_core.hpp"
#include "tests/simulation/clock.hpp"
#include "tests/simulation/network.hpp"

namespace ddp::simulation {

class World;

class Server {
 public:
  struct OwnNode {  // where membership is in an agent's process
    std::string node_key;
    std::function<void(const rendezvous::ToAgent& message)> message;
    std::function<void(const rendezvous::HostCore::StepDown& how)> stepped_down;
  };

  Server(World& world, Process& owner, rendezvous::MembershipOptions options, OwnNode own_node);

  void send(const rendezvous::ToMembership& message);  // of the own node
  void take_in(Channel& channel, const rendezvous::Hello& hello);
  bool take_farewell(const rendezvous::NodeEnded& node);
  void take_answer(const rendezvous::HostCore::CallAnswered& answer);  // to a call of the own node
  void finish(std::function<void()> done);                             // the own agent wants nothing more
  void stop();                                                         // nothing is said, nothing is heard any more

  const rendezvous::Membership& membership() const { return core_.membership(); }
  bool is_over() const { return core_.is_over(); }
  bool has(const std::string& node_key) const;  // a connection of this node, or this is its own process
  std::chrono::milliseconds job_time() const;

 private:
  struct Connection {
    Channel* channel = nullptr;
    std::string node_key;
    RoundId claimed;
  };

  void step(const rendezvous::HostCore::Event& event);
  void perform(const rendezvous::HostCore::Actions& actions);
  void perform(const rendezvous::HostCore::Tell& action);
  void perform(const rendezvous::HostCore::TellOwnAgent& action);
  void perform(const rendezvous::HostCore::Close& action);
  void perform(const rendezvous::HostCore::Drop& action);
  void perform(const rendezvous::HostCore::Print& action);
  void perform(const rendezvous::HostCore::StepDown& action);
  void perform(const rendezvous::HostCore::Finish& action);
  void lose(rendezvous::NodeId id, const Closed& how);
  bool has_been_gone(const rendezvous::Hello& hello) const;
  void wait_for_deadline();

  World& world_;
  Process& owner_;
  OwnNode own_node_;
  const TimePoint began_;
  rendezvous::HostCore core_;
  Timer timer_;
  std::optional<TimePoint> waiting_until_;
  std::map<rendezvous::NodeId, Connection> connections_;
  struct Loss {
    TimePoint at;
    bool was_silent = false;
  };
  std::map<std::string, Loss> losses_;  // by node key; the last of each
  const rendezvous::MembershipOptions options_;
  std::function<void()> finished_;  // to be called when all have been told, or were waited for long enough
  bool is_stopped_ = false;
};

}  // namespace ddp::simulation
