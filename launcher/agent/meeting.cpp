#include "launcher/agent/meeting.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "ddp/error.hpp"
#include "launcher/command_line/option_values.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/io/address.hpp"
#include "rendezvous/port/port_holder.hpp"

namespace ddp::launcher {

using rendezvous::EndpointName;
using rendezvous::MembershipClient;
using rendezvous::MembershipServer;
using Mode = RendezvousConfig::Mode;

namespace {

constexpr std::chrono::seconds kOwnerLimit{5}, kLookUpPause{1};
constexpr const char* kLoopback = "127.0.0.1";

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

bool is_this_host(const std::string& endpoint_host, const std::vector<std::string>& resolved,
                  const std::vector<std::string>& own, const std::string& host_name) {
  if (is_loopback(endpoint_host) || endpoint_host == host_name) return true;
  // A short name and a long one of the same host; two hosts of one short name differ in what they resolve to.
  if (resolved.empty() && first_label(endpoint_host) == first_label(host_name)) return true;
  return std::any_of(resolved.begin(), resolved.end(), [&](const std::string& address) {
    return !is_loopback(address) && std::find(own.begin(), own.end(), address) != own.end();
  });
}

Meeting::Meeting(boost::asio::io_context& io, const LaunchConfig& config, rendezvous::Hello hello, RoundId term,
                 port::Handler store, rendezvous::MembershipLink::Handlers handlers)
    : io_(io),
      config_(config),
      hello_(std::move(hello)),
      term_(term),
      store_(std::move(store)),
      handlers_(std::move(handlers)),
      owner_wait_(io) {
  if (const auto& token = config.rendezvous.token) security_ = std::make_shared<security::Security>(*token);
  handlers_.message = [this, message = std::move(handlers_.message)](const rendezvous::ToAgent& what) {
    has_joined_ = has_joined_ || std::holds_alternative<rendezvous::Welcome>(what);
    message(what);
  };
}

void Meeting::start() {
  const auto& rendezvous = config_.rendezvous;
  if (rendezvous.nodes_max == 1) return serve(false);
  if (rendezvous.mode == Mode::fixed) return rendezvous.node_rank == 0 ? serve(false) : join();
  if (rendezvous.is_host) return *rendezvous.is_host ? serve(false) : join();
  look_up();
}

void Meeting::look_up() {
  looking_up_ = rendezvous::resolve(io_, config_.rendezvous.host, config_.rendezvous.port,
                                    [this](const rendezvous::Resolved& resolved) { decide(resolved); });
}

void Meeting::decide(const rendezvous::Resolved& resolved) {
  looking_up_.reset();
  std::vector<std::string> addresses;
  for (const auto& address : resolved.addresses) addresses.push_back(io::address_of(address).text());
  const auto own = rendezvous::own_addresses();
  if (has_joined_) return;
  if (is_this_host(config_.rendezvous.host, addresses, own, hello_.host_name)) {
    link_.reset();
    return serve(true);
  }
  if (!link_) join();
  if (config_.rendezvous.node_rank == 0) return serve_unless_joined();
  if (!addresses.empty()) return;
  // The name may become known, as that of a pod does some time after its start, and then be this host's.
  owner_wait_.expires_after(kLookUpPause);
  owner_wait_.async_wait([this](boost::system::error_code error) {
    if (!error) look_up();
  });
}

// The endpoint's address may be one that no host knows as its own (NAT, a service's): then it leads to node rank 0. But it
// may also be that of another node, which is given the time to come first.
void Meeting::serve_unless_joined() {
  owner_wait_.expires_after(kOwnerLimit);
  owner_wait_.async_wait([this](boost::system::error_code error) {
    if (error || has_joined_) return;
    handlers_.say("no interface of this host has the address of " + config_.rendezvous.host +
                  ", but this is node rank 0 and nobody else serves the endpoint: it does");
    link_.reset();
    serve(true);
  });
}

void Meeting::serve(bool or_join) {
  const auto& rendezvous = config_.rendezvous;
  const bool alone = rendezvous.nodes_max == 1;
  port::PortOptions options;
  if (alone && (rendezvous.mode == Mode::local || is_loopback(rendezvous.host)))
    options.addresses = {rendezvous.host == "::1" ? rendezvous.host : kLoopback};
  options.first = options.last = rendezvous.port;
  if (rendezvous.port == 0) {
    options.first = rendezvous.port_first;
    options.last = rendezvous.port_last;
  }
  options.warn = handlers_.say;
  port::Handlers by_protocol;
  by_protocol.store = store_;
  if (!alone) {
    by_protocol.http = [this](io::UniqueFd socket, const sockaddr_storage& peer) {
      if (reception_) reception_->adopt(std::move(socket), peer);
    };
    by_protocol.tls = [this](io::UniqueFd socket, const sockaddr_storage& peer) {
      if (reception_) reception_->adopt_tls(std::move(socket), peer);
    };
  }
  try {
    port_ = std::make_unique<port::Port>(io_, std::move(options), std::move(by_protocol));
  } catch (const Error& error) {
    if (or_join) return join();  // another agent of this host may be there already
    const auto holder = rendezvous.port != 0 ? port::holder_of(rendezvous.port) : std::string();
    return boost::asio::post(io_, [lost = handlers_.lost, what = std::string(error.what()), holder] {
      lost({what + (holder.empty() ? "" : "; " + holder + " has it"), "opening the endpoint of the job",
            "another --master-port (--rdzv-endpoint), the same on all nodes"});
    });
  }
  serves_ = true;
  auto server = std::make_unique<MembershipServer>(io_, options_of(hello_, term_), handlers_);
  receive(*server);
  link_ = std::move(server);
  link_->send(hello_);
}

void Meeting::receive(MembershipServer& job) {
  if (config_.rendezvous.nodes_max == 1) return;
  rendezvous::Reception::Options options;
  options.heartbeat_timeout = config_.rendezvous.heartbeat_timeout;
  options.security = security_;
  options.http = [&job, run_id = hello_.run_id](const rendezvous::HttpQuestion& question) {
    return rendezvous::answer_operator(question, {{run_id, job.membership().view()}});
  };
  reception_.emplace(io_, std::move(options), [&job](const rendezvous::Hello&) -> MembershipServer& { return job; },
                     handlers_.say);
}

void Meeting::join() {
  const auto& rendezvous = config_.rendezvous;
  link_ = std::make_unique<MembershipClient>(io_, EndpointName{rendezvous.host, rendezvous.port}, rendezvous.join_timeout,
                                             rendezvous.heartbeat_timeout, handlers_, security_);
  link_->send(hello_);
}

void Meeting::send(const rendezvous::ToMembership& message) {
  if (link_) link_->send(message);
}

std::chrono::milliseconds Meeting::job_time() const { return link_ ? link_->job_time() : std::chrono::milliseconds(0); }

void Meeting::finish(std::function<void()> done) {
  owner_wait_.cancel();
  looking_up_.reset();
  reception_.reset();
  if (!link_) return boost::asio::post(io_, std::move(done));
  link_->finish(std::move(done));
}

std::uint16_t Meeting::store_port() {
  if (!port_) {
    port::PortOptions options;
    options.first = config_.rendezvous.port_first;
    options.last = config_.rendezvous.port_last;
    options.warn = handlers_.say;
    port::Handlers store_only;
    store_only.store = store_;
    port_ = std::make_unique<port::Port>(io_, std::move(options), std::move(store_only));
  }
  return port_->number();
}

}  // namespace ddp::launcher
