#include "launcher/agent/meeting.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <memory>
#include <system_error>
#include <utility>

#include "base/address.hpp"
#include "base/loopback.hpp"
#include "base/with_limit.hpp"
#include "ddp/error.hpp"
#include "launcher/node/node_words.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/port/port_holder.hpp"
#include "rendezvous/round/term.hpp"

namespace ddp::launcher {

using rendezvous::EndpointName;
using rendezvous::MembershipClient;
using rendezvous::MembershipServer;
using RendezvousMode = RendezvousConfig::Mode;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr std::chrono::seconds kHoldersLimit{2};  // an error message has no use for more

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
    out += port_holder_text(holder, first, next - 1, rendezvous.port_count != 1);
  }
  return out;
}

// All nodes of a job whose endpoint is at a loopback address are on this host, and reach each other there, unless this
// one is to be reached at another address. Empty: all addresses.
std::vector<std::string> listening_addresses(const RendezvousConfig& rendezvous) {
  if (rendezvous.mode == RendezvousMode::local) return {kLoopback};
  if (!base::is_loopback_host(rendezvous.host) || (rendezvous.nodes_max > 1 && !rendezvous.local_address.empty()))
    return {};
  return {base::with_loopback_address(rendezvous.host)};
}

MeetingCore::Options options_of(const RendezvousConfig& rendezvous, const ddp::rendezvous::Hello& hello) {
  MeetingCore::Options options;
  options.run_id = hello.run_id;
  options.host_name = hello.host_name;
  if (rendezvous.nodes_max == 1)
    options.serves = true;
  else
    options.serves = rendezvous.mode == RendezvousMode::fixed ? rendezvous.node_rank == 0 : rendezvous.is_host;
  options.may_have_daemon = rendezvous.may_have_daemon;
  options.is_node_rank_0 = rendezvous.node_rank == 0;
  options.may_be_slurm_node = rendezvous.may_be_slurm_node;
  options.endpoint_host = rendezvous.host;
  options.local_address = rendezvous.local_address;
  if (rendezvous.may_be_slurm_node) options.own = rendezvous::own_addresses();  // nobody else asks for them
  return options;
}

}  // namespace

Meeting::Meeting(boost::asio::io_context& io, const LaunchConfig& config,
                 std::shared_ptr<const security::Security> security, rendezvous::Hello hello, RoundId term,
                 port::Handler store, base::WarningLog& warnings, rendezvous::MembershipClient::Handlers handlers,
                 Log log)
    : io_(io),
      config_(config),
      hello_(std::move(hello)),
      term_(term),
      store_(std::move(store)),
      warnings_(warnings),
      handlers_(std::move(handlers)),
      log_(std::move(log)),
      security_(std::move(security)),
      core_(options_of(config.rendezvous, hello_)),
      timer_(io) {
  hand_on_ = std::move(handlers_.message);
  handlers_.message = [this](const rendezvous::ToAgent& message) { decide(MeetingCore::Heard{message}); };
  handlers_.serve = [this](const rendezvous::LostHost& lost) { decide(MeetingCore::ToServe{lost}); };
}

void Meeting::start() { decide(MeetingCore::Begin{}); }

void Meeting::decide(const MeetingCore::Event& event) { perform(core_.step(event, Clock::now())); }

void Meeting::perform(const MeetingCore::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
  timer_.cancel();
  const auto deadline = core_.next_deadline();
  if (!deadline) return;
  timer_.expires_at(*deadline);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) perform(core_.tick(Clock::now()));
  });
}

void Meeting::perform(const MeetingCore::LookUp&) {
  const auto& rendezvous = config_.rendezvous;
  looking_up_ = rendezvous::resolve(
      io_, {rendezvous.host, rendezvous.port, rendezvous.may_be_slurm_node},
      [this](const rendezvous::Resolved& resolved) {
        looking_up_.reset();
        MeetingCore::LookedUp answer{{}, rendezvous::own_addresses(), resolved.slurm_address, resolved.error};
        for (const auto& address : resolved.addresses) answer.addresses.push_back(base::address_of(address).text());
        decide(answer);
      });
}

void Meeting::perform(const MeetingCore::OpenEndpoint&) {
  const auto& rendezvous = config_.rendezvous;
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
    return decide(MeetingCore::EndpointTaken{error.what(),
                                             free_port_advice(rendezvous.host, rendezvous.port_count != 1),
                                             dynamic_cast<const port::PortsInUse*>(&error) != nullptr});
  }
  client_.reset();
  reception_.reset();
  if (rendezvous.nodes_max > 1) {
    hello_.standby_port = port_->number();
    receive();
  }
  make_client();
  decide(MeetingCore::EndpointOpened{});
}

// /proc of another process may not answer: its memory is locked while it waits for a disk.
void Meeting::perform(const MeetingCore::Lose& action) {
  const auto holders = std::make_shared<std::string>();
  auto tell = [this, action, holders] {
    handlers_.lost(endpoint_taken_error(action.what + *holders, action.try_this));
  };
  auto look = [holders, rendezvous = config_.rendezvous] {
    *holders = base::run_with_limit(kHoldersLimit, [rendezvous] { return holders_of(rendezvous); }).value_or("");
  };
  try {
    port_holders_.emplace(io_, base::FileThread::Options{.end_limit = {}});
    if (port_holders_->post(look, tell)) return;
  } catch (const std::system_error&) {  // no thread is to be had
  }
  boost::asio::post(io_, tell);
}

void Meeting::perform(const MeetingCore::StartHosting& action) {
  const auto& rendezvous = config_.rendezvous;
  auto options = rendezvous::agent_options(
      hello_, action.is_first ? term_ : rendezvous::begin_term(),
      {rendezvous.heartbeat_timeout, security_ != nullptr, action.is_next,
       own_endpoint_address(rendezvous.host, rendezvous.port_count, rendezvous::own_addresses), action.lost});
  MembershipServer::Handlers handlers;
  handlers.message = [this](const rendezvous::ToAgent& message) { client_->hear(message); };
  handlers.print = handlers_.print;
  handlers.log = log_;
  handlers.stepped_down = [this](const rendezvous::HostCore::StepDown& how) {
    decide(rendezvous::Session::stepped_down(how));
  };
  server_ = std::make_unique<MembershipServer>(io_, std::move(options), std::move(handlers));
  client_->host(*server_);
}

void Meeting::perform(const MeetingCore::TellHost& action) { server_->take_farewell(action.node); }

void Meeting::perform(const MeetingCore::StopHosting& action) {
  client_->step_down(action.how);
  server_.reset();
}

void Meeting::perform(const MeetingCore::Join&) {
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
    handlers_.print(no_standby_text(error.what()));
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
  options.farewell = [this](const rendezvous::NodeEnded& node) { return take_farewell(node); };
  reception_.emplace(
      io_, std::move(options),
      [this](const rendezvous::Hello& hello, const base::Address&) { return direct(hello.run_id); },
      std::ref(warnings_));
}

bool Meeting::take_farewell(const rendezvous::NodeEnded& node) {
  const bool is_of_host = client_ && client_->take_farewell(node);
  const bool is_known = is_of_host || (server_ && server_->membership().knows(node.node_key));
  decide(MeetingCore::GuardianSaid{node, is_of_host});
  return is_known;
}

rendezvous::Reception::Direction Meeting::direct(const std::string& run_id) const {
  const auto direction = core_.direct(run_id, whereabouts());
  if (const auto* elsewhere = std::get_if<rendezvous::Elsewhere>(&direction)) return *elsewhere;
  const bool is_here = std::holds_alternative<MeetingCore::Here>(direction) && server_ != nullptr;
  return is_here ? rendezvous::Reception::Direction(std::ref(*server_)) : std::monostate();
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

std::chrono::milliseconds Meeting::job_time_error() const {
  return client_ ? client_->job_time_error() : std::chrono::milliseconds(0);
}

std::vector<rendezvous::Session::Target> Meeting::farewell_targets() const {
  return client_ ? client_->farewell_targets() : std::vector<rendezvous::Session::Target>();
}

std::optional<rendezvous::Session::Target> Meeting::whereabouts() const {
  return client_ ? client_->whereabouts() : std::nullopt;
}

std::string Meeting::endpoint_host() const { return core_.endpoint_host(client_ ? client_->endpoint_host() : ""); }

void Meeting::finish(std::function<void()> done) {
  core_.finish();
  timer_.cancel();
  looking_up_.reset();
  port_holders_.reset();
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
