#include "launcher/agent/meeting.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/address.hpp"
#include "base/host_and_port.hpp"
#include "ddp/error.hpp"
#include "launcher/command_line/option_values.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/port/port_holder.hpp"
#include "rendezvous/round/term.hpp"

namespace ddp::launcher {

using rendezvous::EndpointName;
using rendezvous::MembershipClient;
using rendezvous::MembershipServer;
using RendezvousMode = RendezvousConfig::Mode;

namespace {

constexpr std::chrono::seconds kOwnerLimit{5}, kLookUpPause{1};
constexpr std::chrono::seconds kAddressLimit{15};  // more than Slurm's controller has for its answer
constexpr const char* kLoopback = "127.0.0.1";

// "; pid 7 (python3) has it"; of several ports, who has which.
std::string holders_of(const RendezvousConfig& rendezvous) {
  std::string out;
  if (rendezvous.port == 0) return out;
  const int end = rendezvous.port + rendezvous.port_count;
  for (int first = rendezvous.port, next = first; first < end; first = next) {
    const auto holder = port::holder_of(static_cast<std::uint16_t>(first));
    while (++next < end && port::holder_of(static_cast<std::uint16_t>(next)) == holder) {
    }
    if (holder.empty()) continue;
    const auto ports = std::to_string(first) + (next == first + 1 ? "" : "-" + std::to_string(next - 1));
    out += "; " + holder + " has " + (rendezvous.port_count == 1 ? "it" : ports);
  }
  return out;
}

// All nodes of a job whose endpoint is at a loopback address are on this host, and reach each other there, unless this
// one is to be reached at another address. Empty: all addresses.
std::vector<std::string> listening_addresses(const RendezvousConfig& rendezvous) {
  if (rendezvous.mode == RendezvousMode::local) return {kLoopback};
  if (!is_loopback(rendezvous.host) || (rendezvous.nodes_max > 1 && !rendezvous.local_address.empty())) return {};
  return {with_loopback_address(rendezvous.host)};
}

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

Meeting::Meeting(boost::asio::io_context& io, const LaunchConfig& config,
                 std::shared_ptr<const security::Security> security, rendezvous::Hello hello, RoundId term,
                 port::Handler store, base::WarningLog& warnings, rendezvous::MembershipClient::Handlers handlers)
    : io_(io),
      config_(config),
      hello_(std::move(hello)),
      term_(term),
      store_(std::move(store)),
      warnings_(warnings),
      handlers_(std::move(handlers)),
      security_(std::move(security)),
      owner_wait_(io) {
  hand_on_ = std::move(handlers_.message);
  handlers_.message = [this](const rendezvous::ToAgent& message) {
    remember(message);
    if (const auto* start = std::get_if<rendezvous::StartRound>(&message); start && is_address_awaited(*start)) {
      held_start_ = *start;
      return;
    }
    begin_held_round();
    hand_on_(message);
  };
  handlers_.serve = [this](std::optional<int> lost_group_rank) { serve_next(lost_group_rank); };
}

void Meeting::remember(const rendezvous::ToAgent& message) {
  has_joined_ = has_joined_ || std::holds_alternative<rendezvous::Welcome>(message);
  if (const auto* start = std::get_if<rendezvous::StartRound>(&message))
    for (const auto& successor : start->successors)
      if (successor.group_rank == start->group_rank) standby_address_ = successor.address;
}

// By this node's workers, which are to connect to it.
bool Meeting::is_address_awaited(const rendezvous::StartRound& start) const {
  return server_ && looking_up_ && start.master_address.empty();
}

void Meeting::begin_held_round() {
  if (!held_start_) return;
  const auto start = *std::exchange(held_start_, std::nullopt);
  hand_on_(start);
}

// Empty: the addresses of the endpoint's host tell.
std::optional<bool> Meeting::serves_by_settings() const {
  const auto& rendezvous = config_.rendezvous;
  if (rendezvous.nodes_max == 1) return true;
  return rendezvous.mode == RendezvousMode::fixed ? rendezvous.node_rank == 0 : rendezvous.is_host;
}

void Meeting::start() {
  const auto serves = serves_by_settings();
  if (!serves) return look_up();
  if (!*serves) return join();
  if (config_.rendezvous.may_be_slurm_node) find_address();
  serve(config_.rendezvous.may_have_daemon);
}

// Under Slurm the endpoint's name need not resolve, and workers here need an address then. Others can come meanwhile.
void Meeting::find_address() {
  const auto& rendezvous = config_.rendezvous;
  looking_up_ = rendezvous::resolve(io_, {rendezvous.host, rendezvous.port, true},
                                    [this](const rendezvous::Resolved& resolved) { take_address(resolved); });
  owner_wait_.expires_after(kAddressLimit);
  owner_wait_.async_wait([this](boost::system::error_code error) {
    if (error || !looking_up_) return;
    take_address({{}, "the name " + config_.rendezvous.host + " is still being looked up", ""});
  });
}

void Meeting::take_address(const rendezvous::Resolved& resolved) {
  looking_up_.reset();
  owner_wait_.cancel();
  address_ = resolved.slurm_address;
  if (!resolved.error.empty()) {
    const auto own = rendezvous::own_addresses();
    address_ = config_.rendezvous.local_address;
    if (address_.empty() && !own.empty()) address_ = own.front();
    handlers_.say(resolved.error + (address_.empty() ? "" : "; workers of this node reach it at " + address_));
  }
  begin_held_round();
}

void Meeting::look_up() {
  const auto& rendezvous = config_.rendezvous;
  looking_up_ = rendezvous::resolve(io_, {rendezvous.host, rendezvous.port, rendezvous.may_be_slurm_node},
                                    [this](const rendezvous::Resolved& resolved) { decide(resolved); });
}

void Meeting::decide(const rendezvous::Resolved& resolved) {
  looking_up_.reset();
  std::vector<std::string> addresses;
  for (const auto& address : resolved.addresses) addresses.push_back(base::address_of(address).text());
  const auto own = rendezvous::own_addresses();
  if (has_joined_) return;
  address_ = resolved.slurm_address;
  if (is_this_host(config_.rendezvous.host, addresses, own, hello_.host_name)) return serve(true);
  if (!client_) join();
  if (config_.rendezvous.node_rank == 0) return serve_unless_joined();
  if (!addresses.empty()) return;
  // The name may become known, as that of a pod does some time after its start, and then be this host's.
  owner_wait_.expires_after(kLookUpPause);
  owner_wait_.async_wait([this](boost::system::error_code error) {
    if (!error) look_up();
  });
}

// The endpoint's address may be one that no host knows as its own (NAT, a service's): then it leads to node rank 0. But
// it may also be that of another node, which is given the time to come first.
void Meeting::serve_unless_joined() {
  owner_wait_.expires_after(kOwnerLimit);
  owner_wait_.async_wait([this](boost::system::error_code error) {
    if (error || has_joined_) return;
    handlers_.say("no interface of this host has the address of " + config_.rendezvous.host +
                  ", but this is node rank 0 and nobody else serves the endpoint: it does");
    serve(true);
  });
}

void Meeting::serve(bool or_join) {
  const auto& rendezvous = config_.rendezvous;
  client_.reset();
  reception_.reset();
  port::PortOptions options;
  options.addresses = listening_addresses(rendezvous);
  options.first = rendezvous.port;
  options.last = static_cast<std::uint16_t>(rendezvous.port + rendezvous.port_count - 1);
  if (rendezvous.port == 0) {
    options.first = rendezvous.port_first;
    options.last = rendezvous.port_last;
  }
  options.warn = std::ref(warnings_);
  try {
    port_ = std::make_unique<port::Port>(io_, std::move(options), both_protocols());
  } catch (const Error& error) {
    looking_up_.reset();
    owner_wait_.cancel();
    if (or_join) return join();  // another agent of this host, or a daemon, may be there already
    const auto try_this = rendezvous.port_count == 1
                              ? "another --master-port (--rdzv-endpoint), the same on all nodes"
                              : "`--rdzv-backend=c10d --rdzv-endpoint=" + base::host_and_port(rendezvous.host, "PORT") +
                                    "` with a port that is free there, the same on all nodes";
    return boost::asio::post(io_, [lost = handlers_.lost, what = error.what() + holders_of(rendezvous), try_this] {
      lost({what, "opening the endpoint of the job", try_this});
    });
  }
  if (rendezvous.nodes_max > 1) {
    hello_.standby_port = port_->number();
    receive();
  }
  make_client();
  host(options_of(hello_, term_));
}

// As the host of the endpoint is lost; its connections come to the port on which this node has stood by.
void Meeting::serve_next(std::optional<int> lost_group_rank) {
  is_next_host_ = true;
  auto options = options_of(hello_, rendezvous::begin_term());
  options.lost_group_rank = lost_group_rank;
  host(std::move(options));
}

void Meeting::host(rendezvous::MembershipOptions options) {
  options.heartbeat_timeout = config_.rendezvous.heartbeat_timeout;
  MembershipServer::Handlers handlers;
  handlers.message = [this](const rendezvous::ToAgent& message) { client_->hear(message); };
  handlers.say = handlers_.say;
  handlers.stepped_down = [this](const std::string& why) { step_down(why); };
  server_ = std::make_unique<MembershipServer>(io_, std::move(options), std::move(handlers));
  client_->host(*server_);
}

void Meeting::step_down(const std::string& why) {
  handlers_.say("this node does not serve the job any longer: " + why);
  client_->step_down(why);
  server_.reset();
}

void Meeting::join() {
  stand_by();
  make_client();
  client_->begin();
}

// So that this node can serve the endpoint once its host is lost. Where no port is to be had another one does.
void Meeting::stand_by() {
  try {
    hello_.standby_port = store_port();
    receive();
  } catch (const Error& error) {
    handlers_.say(std::string("this node can't stand in for the endpoint's host: ") + error.what());
  }
}

void Meeting::make_client() {
  const auto& rendezvous = config_.rendezvous;
  client_ = std::make_unique<MembershipClient>(
      io_, EndpointName{rendezvous.host, rendezvous.port, rendezvous.port_count, rendezvous.may_be_slurm_node},
      rendezvous::Session::Options{rendezvous.join_timeout, rendezvous.heartbeat_timeout, rendezvous.orphan_limit},
      hello_, handlers_, security_);
}

void Meeting::receive() {
  rendezvous::Reception::Options options;
  options.heartbeat_timeout = config_.rendezvous.heartbeat_timeout;
  options.security = security_;
  options.http = [this](const rendezvous::HttpQuestion& question) {
    const auto jobs = [this] {
      rendezvous::JobViews out;
      if (server_) out.emplace(hello_.run_id, server_->membership().view());
      return out;
    };
    return rendezvous::answer_operator(question, jobs, warnings_.counts());
  };
  options.farewell = [this](const std::string& node_key) { return server_ && server_->take_farewell(node_key); };
  reception_.emplace(
      io_, std::move(options), [this](const rendezvous::Hello& hello, const base::Address&) { return direct(hello); },
      std::ref(warnings_));
}

rendezvous::Reception::Direction Meeting::direct(const rendezvous::Hello& hello) const {
  if (server_) return std::ref(*server_);
  if (hello.run_id != hello_.run_id) return std::monostate();
  if (const auto where = whereabouts()) return rendezvous::Elsewhere{where->address, where->port};
  return std::monostate();
}

port::Handlers Meeting::both_protocols() {
  port::Handlers handlers;
  handlers.store = store_;
  if (config_.rendezvous.nodes_max > 1) {
    handlers.http = [this](base::UniqueFd socket, const sockaddr_storage& peer) {
      if (reception_) reception_->adopt(std::move(socket), peer);
    };
    handlers.tls = [this](base::UniqueFd socket, const sockaddr_storage& peer) {
      if (reception_) reception_->adopt_tls(std::move(socket), peer);
    };
  }
  return handlers;
}

void Meeting::send(const rendezvous::ToMembership& message) {
  if (client_) client_->send(message);
}

std::chrono::milliseconds Meeting::job_time() const {
  return client_ ? client_->job_time() : std::chrono::milliseconds(0);
}

std::optional<rendezvous::Session::Target> Meeting::whereabouts() const {
  return client_ ? client_->whereabouts() : std::nullopt;
}

// Workers may take `localhost` for ::1, where another user of the host may listen.
std::string Meeting::endpoint_host() const {
  if (server_ && is_next_host_) return standby_address_;
  auto host = config_.rendezvous.host;
  if (server_ && !address_.empty()) host = address_;
  if (!server_ && client_) host = client_->endpoint_host();
  return with_loopback_address(host);
}

void Meeting::finish(std::function<void()> done) {
  owner_wait_.cancel();
  looking_up_.reset();
  reception_.reset();
  if (server_) return server_->finish(std::move(done));
  if (!client_) return boost::asio::post(io_, std::move(done));
  client_->finish(std::move(done));
}

std::uint16_t Meeting::store_port() {
  if (!port_) {
    port::PortOptions options;
    options.addresses = listening_addresses(config_.rendezvous);
    options.first = config_.rendezvous.port_first;
    options.last = config_.rendezvous.port_last;
    options.warn = std::ref(warnings_);
    port_ = std::make_unique<port::Port>(io_, std::move(options), both_protocols());
  }
  return port_->number();
}

}  // namespace ddp::launcher
