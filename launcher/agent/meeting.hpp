// Where this node meets the others: gives the agent its link to membership, serves the endpoint where this node is to,
// and stands by to serve it once its host is lost. MeetingCore decides, this performs.
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

#include "base/file_thread.hpp"
#include "base/line_log.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/node/meeting_core.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/reception.hpp"
#include "rendezvous/link/membership_client.hpp"
#include "rendezvous/link/resolver.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher {

class Meeting {
 public:
  // Of the membership that this node serves.
  using Log = decltype(rendezvous::MembershipServer::Handlers::log);

  // `store` takes the connections of store clients that come to the endpoint's port, `warnings` hears of those that are
  // refused.
  Meeting(boost::asio::io_context& io, const LaunchConfig& config, std::shared_ptr<const security::Security> security,
          rendezvous::Hello hello, RoundId term, port::Handler store, base::WarningLog& warnings,
          rendezvous::MembershipClient::Handlers handlers, Log log);

  // Begins; from then on the handlers are called.
  void start();

  void send(const rendezvous::ToMembership& message);
  std::chrono::milliseconds job_time() const;
  std::chrono::milliseconds job_time_error() const;
  void finish(std::function<void()> done);

  bool is_joined() const { return client_ && client_->is_joined(); }
  bool serves_endpoint() const { return server_ != nullptr; }

  // The membership that this node is joined to, by its numeric address; empty where it is in this process, or nowhere.
  std::optional<rendezvous::Session::Target> whereabouts() const;

  // Whom the guardian of this node is to tell, by their numeric addresses, once nothing of the job is left here.
  std::vector<rendezvous::Session::Target> farewell_targets() const;

  // As workers of this node are to reach the endpoint's host.
  std::string endpoint_host() const;

  // The port on which this node takes store clients; opened where it was not yet. Throws Error.
  std::uint16_t store_port();

  // Connections that came but were not handed over belong to an earlier round.
  void drop_pending() {
    if (port_) port_->drop_pending();
  }

 private:
  // --- what the core decides ---
  void decide(const MeetingCore::Event& event);
  void perform(const MeetingCore::Actions& actions);
  void perform(const MeetingCore::LookUp&);
  void perform(const MeetingCore::GiveUpLookUp&) { looking_up_.reset(); }
  void perform(const MeetingCore::OpenEndpoint&);
  void perform(const MeetingCore::Join&);
  void perform(const MeetingCore::StartHosting& action);
  void perform(const MeetingCore::StopHosting& action);
  void perform(const MeetingCore::TellHost& action);
  void perform(const MeetingCore::HandOn& action) { hand_on_(action.message); }
  void perform(const MeetingCore::Print& action) { handlers_.print(action.line); }
  void perform(const MeetingCore::Lose& action);

  void stand_by();
  void receive();
  bool take_farewell(const rendezvous::NodeEnded& node);
  void make_client();
  rendezvous::Reception::Direction direct(const std::string& run_id) const;
  port::Handlers both_protocols();

  boost::asio::io_context& io_;
  const LaunchConfig& config_;
  rendezvous::Hello hello_;
  RoundId term_;
  port::Handler store_;
  base::WarningLog& warnings_;
  rendezvous::MembershipClient::Handlers handlers_;
  const Log log_;
  std::function<void(const rendezvous::ToAgent& message)> hand_on_;
  std::shared_ptr<const security::Security> security_;  // none without a token
  std::shared_ptr<void> looking_up_;
  std::optional<base::FileThread> port_holders_;          // looks who has the endpoint's port
  std::unique_ptr<rendezvous::MembershipServer> server_;  // where this node serves the endpoint
  std::unique_ptr<rendezvous::MembershipClient> client_;
  std::optional<rendezvous::Reception> reception_;
  std::unique_ptr<port::Port> port_;  // of the endpoint or, on another node, of the store and of the endpoint to come
  MeetingCore core_;
  boost::asio::steady_timer timer_;
};

}  // namespace ddp::launcher
