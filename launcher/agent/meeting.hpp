// Where this node meets the others: finds out who serves the endpoint, gives the agent its link to membership, and
// stands by to serve the endpoint itself once its host is lost.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/line_log.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "rendezvous/control/membership_client.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/reception.hpp"
#include "rendezvous/control/resolver.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher {

// Whether the endpoint's host is this one: it is a loopback name, this host's own name, or resolves to an address of
// it. Pure. `resolved` and `own` are addresses as texts.
bool is_this_host(const std::string& endpoint_host, const std::vector<std::string>& resolved,
                  const std::vector<std::string>& own, const std::string& host_name);

class Meeting {
 public:
  // `store` takes the connections of store clients that come to the endpoint's port, `warnings` hears of those that are
  // refused.
  Meeting(boost::asio::io_context& io, const LaunchConfig& config, std::shared_ptr<const security::Security> security,
          rendezvous::Hello hello, RoundId term, port::Handler store, base::WarningLog& warnings,
          rendezvous::MembershipClient::Handlers handlers);

  // Begins; from then on the handlers are called.
  void start();

  void send(const rendezvous::ToMembership& message);
  std::chrono::milliseconds job_time() const;
  void finish(std::function<void()> done);

  bool is_joined() const { return client_ && client_->is_joined(); }
  bool serves_endpoint() const { return server_ != nullptr; }

  // The membership that this node is joined to, by its numeric address; empty where it is in this process, or nowhere.
  std::optional<rendezvous::Session::Target> whereabouts() const;

  // As workers of this node are to reach the endpoint's host.
  std::string endpoint_host() const;

  // The port on which this node takes store clients; opened where it was not yet. Throws Error.
  std::uint16_t store_port();

  // Connections that came but were not handed over belong to an earlier round.
  void drop_pending() {
    if (port_) port_->drop_pending();
  }

 private:
  std::optional<bool> serves_by_settings() const;
  void find_address();
  void take_address(const rendezvous::Resolved& resolved);
  bool is_address_awaited(const rendezvous::StartRound& start) const;
  void begin_held_round();
  void look_up();
  void decide(const rendezvous::Resolved& resolved);
  void serve(bool or_join);
  void serve_next(std::optional<int> lost_group_rank);
  void host(rendezvous::MembershipOptions options);
  void step_down(const std::string& why);
  void join();
  void stand_by();
  void receive();
  void make_client();
  void serve_unless_joined();
  void remember(const rendezvous::ToAgent& message);
  rendezvous::Reception::Direction direct(const rendezvous::Hello& hello) const;
  port::Handlers both_protocols();

  boost::asio::io_context& io_;
  const LaunchConfig& config_;
  rendezvous::Hello hello_;
  RoundId term_;
  port::Handler store_;
  base::WarningLog& warnings_;
  rendezvous::MembershipClient::Handlers handlers_;
  std::function<void(const rendezvous::ToAgent& message)> hand_on_;
  std::shared_ptr<const security::Security> security_;  // none without a token
  std::shared_ptr<void> looking_up_;
  std::unique_ptr<rendezvous::MembershipServer> server_;  // where this node serves the endpoint
  std::unique_ptr<rendezvous::MembershipClient> client_;
  std::optional<rendezvous::Reception> reception_;
  std::unique_ptr<port::Port> port_;  // of the endpoint or, on another node, of the store and of the endpoint to come
  boost::asio::steady_timer owner_wait_;
  std::string address_;  // of the endpoint's host, where its name does not resolve and this node serves it
  std::optional<rendezvous::StartRound> held_start_;  // until that is known
  std::string standby_address_;                       // of this node, as membership saw it
  bool has_joined_ = false, is_next_host_ = false;
};

}  // namespace ddp::launcher
