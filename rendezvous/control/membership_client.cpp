#include "rendezvous/control/membership_client.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

#include "base/address.hpp"
#include "ddp/error.hpp"
#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/message_json.hpp"
#include "rendezvous/control/resolver.hpp"
#include "rendezvous/link/port_answers.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using How = Session::How;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

namespace {

constexpr auto kQuietTime = 2s;  // nodes that are started together need not be told of each other's delay
constexpr auto kGoodbyeLimit = 1'000ms;
constexpr auto kRefusedLimit = 30s;  // while all ports refuse: nodes of a step may be started one after another
constexpr auto kLookUpLimit = 30s;   // for a name; then another one is begun
constexpr auto kSlurmPause = 10s;    // each question costs a process, and the time of a controller that all nodes ask
constexpr std::size_t kAddressesShown = 6;
constexpr std::size_t kGivenUpMax = 4;

std::string list_of(const std::vector<std::string>& texts) {
  std::string out;
  for (std::size_t i = 0; i < texts.size() && i < kAddressesShown; ++i) out += (i == 0 ? "" : ", ") + texts[i];
  if (texts.size() > kAddressesShown) out += " and " + std::to_string(texts.size() - kAddressesShown) + " more";
  return texts.empty() ? "none" : out;
}

Session::Options with_ports(Session::Options options, int count) {
  options.endpoint_ports = count;
  return options;
}

How how_of(int error) { return error == ECONNREFUSED ? How::refused : error == ECONNRESET ? How::closed : How::silent; }

}  // namespace

class MembershipClient::Impl : public std::enable_shared_from_this<MembershipClient::Impl> {
 public:
  Impl(asio::io_context& io, EndpointName endpoint, Session::Options options, Hello hello, Handlers handlers,
       std::shared_ptr<const security::Security> security)
      : io_(io),
        endpoint_(std::move(endpoint)),
        options_(with_ports(options, endpoint_.port_count)),
        host_name_(hello.host_name),
        run_id_(hello.run_id),
        workers_(hello.workers),
        handlers_(std::move(handlers)),
        security_(std::move(security)),
        timer_(io),
        attempt_limit_(io),
        port_answers_(endpoint_),
        session_(options_, std::move(hello), began_) {}

  void step(const Session::Event& event) { perform(session_.step(event, Clock::now())); }

  void begin() {
    asio::post(io_, [self = shared_from_this()] { self->step(Session::Begin{}); });
  }

  void host(MembershipServer& membership) {
    own_ = &membership;
    step(Session::Hosting{});
  }

  void hear(const ToAgent& message) {
    has_joined_ = true;
    if (own_ != nullptr) step(Session::Heard{message});
  }

  void step_down(const std::string& why) {
    own_ = nullptr;
    step(Session::SteppedDown{why});
  }

  bool is_joined() const { return session_.is_joined(); }
  milliseconds job_time() const { return own_ != nullptr ? own_->job_time() : since_start() + clock_offset_; }
  std::optional<Session::Target> whereabouts() const { return session_.whereabouts(); }
  std::string endpoint_host() const {
    if (!target_.address.empty()) return target_.address;
    return slurm_address_.empty() ? endpoint_.host : slurm_address_;
  }

  void finish(std::function<void()> done) {
    handlers_ = {};
    timer_.cancel();
    looking_up_.reset();
    end_attempt();
    let_go();
    if (!channel_) return asio::post(io_, std::move(done));
    const auto both = std::make_shared<std::function<void()>>(std::move(done));
    const auto once = [both] {
      if (*both) std::exchange(*both, nullptr)();
    };
    timer_.expires_after(kGoodbyeLimit);
    timer_.async_wait([once](error_code error) {
      if (!error) once();
    });
    channel_->finish([self = shared_from_this(), once] {
      self->timer_.cancel();
      once();
    });
  }

  void stop() {
    handlers_ = {};
    timer_.cancel();
    looking_up_.reset();
    end_attempt();
    let_go();
    channel_.reset();
    own_ = nullptr;
  }

 private:
  milliseconds since_start() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - began_); }

  // --- what the session decides ---

  void perform(const Session::Actions& actions) {
    for (const auto& action : actions) {
      if (!handlers_.message) return;  // it is over
      std::visit([this](const auto& what) { perform(what); }, action);
    }
    if (handlers_.message) wait_for_deadline();
  }

  void wait_for_deadline() {
    timer_.cancel();
    const auto deadline = session_.next_deadline();
    if (!deadline) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      if (const auto self = weak.lock(); !error && self) self->perform(self->session_.tick(Clock::now()));
    });
  }

  void perform(const Session::HangUp&) { hang_up(); }

  void perform(const Session::Send& action) {
    if (own_ != nullptr) return own_->send(action.message);
    if (channel_) channel_->send(to_json(action.message));
  }

  void perform(const Session::HandOn& action) {
    const auto handler = handlers_.message;
    handler(action.message);
  }

  void perform(const Session::Serve& action) {
    handlers_.say("the endpoint " + host_place_ + " is lost: " + lost_why_ + "; this node serves the job from now on");
    asio::post(io_, [serve = handlers_.serve, action] { serve(action.lost_group_rank); });
  }

  void perform(const Session::StopOrphans& action) {
    asio::post(io_, [stop = handlers_.stop_orphans, why = action.why] { stop(why); });
  }

  void perform(const Session::GiveUp& action) {
    if (action.refused)
      return lose({action.refused->what, "joining the job" + (own_ != nullptr ? "" : " at " + place()),
                   action.refused->try_this});
    if (has_joined_)
      return lose({"nobody of the job has answered for " + describe_duration(options_.join_timeout) +
                       (last_reason_.empty() ? "" : " (last: " + last_reason_ + ")"),
                   "host " + host_name_ + ", job " + run_id_ + ", which was at " + text_of(endpoint()),
                   "look at the output of ddprun, and of ddp-rendezvous, there"});
    if (last_reason_.empty())
      last_reason_ = looking_up_ ? "the name is still being looked up" : "no answer to our hello";
    lose({"no answer from ddprun at " + text_of(endpoint()) + " within " + describe_duration(options_.join_timeout) +
              " (last: " + last_reason_ + ")",
          "joining job " + run_id_ + ", attempt " + std::to_string(attempts_) + ", from host " + host_name_ +
              "; the endpoint's addresses: " + list_of(addresses_) + "; this host's: " + list_of(own_addresses()),
          what_to_try()});
  }

  // --- one attempt: resolve, connect to one address after another, WebSocket ---

  void perform(const Session::Connect& action) {
    ++attempts_;
    target_ = action.to;
    limit_ = action.limit;
    how_.reset();
    candidates_.clear();
    if (!action.to.address.empty()) {
      // Messages carry numeric addresses only.
      candidates_.push_back(base::socket_address(base::parse_address(action.to.address).value(), action.to.port));
      return connect_next();
    }
    if (action.to.port > 0 && !resolved_.empty()) return try_port(action.to.port);  // of a host that was just looked up
    if (found_) return take(*std::exchange(found_, std::nullopt));
    is_name_awaited_ = true;
    attempt_limit_.expires_after(limit_);
    attempt_limit_.async_wait([self = shared_from_this(), attempt = attempts_](error_code error) {
      if (!error && self->is_name_awaited_ && self->attempts_ == attempt)
        self->host_is_unknown("the name is still being looked up");
    });
    if (looking_up_ && Clock::now() - look_up_began_ < kLookUpLimit) return;  // since an attempt before
    try {
      look_up();
    } catch (const std::exception& error) {  // no thread or descriptor to be had just now
      host_is_unknown(error.what());
    }
  }

  // It may outlast the attempt: the next one takes what it finds.
  void look_up() {
    look_up_began_ = Clock::now();
    // What Slurm has said once it is not asked again.
    auto wanted = slurm_address_.empty() ? Wanted{endpoint_.host, endpoint_.port, endpoint_.may_be_slurm_node}
                                         : Wanted{slurm_address_, endpoint_.port};
    if (slurm_failed_at_ && look_up_began_ - *slurm_failed_at_ < kSlurmPause) wanted.may_be_slurm_node = false;
    looking_up_ = resolve(io_, wanted, [this, asks_slurm = wanted.may_be_slurm_node](Resolved resolved) {
      looking_up_.reset();
      if (asks_slurm && !resolved.error.empty()) {
        slurm_failed_at_ = Clock::now();
        slurm_error_ = resolved.error;
      } else if (!resolved.error.empty() && !slurm_error_.empty()) {
        resolved.error = slurm_error_;
      }
      if (is_name_awaited_) return take(resolved);
      found_ = std::move(resolved);
    });
  }

  void take(const Resolved& resolved) {
    is_name_awaited_ = false;
    attempt_limit_.cancel();
    if (!resolved.error.empty()) return host_is_unknown(resolved.error);
    addresses_.clear();
    for (const auto& address : resolved.addresses) addresses_.push_back(base::address_of(address).text());
    resolved_ = resolved.addresses;
    if (!resolved.slurm_address.empty()) slurm_address_ = resolved.slurm_address;
    try_port(target_.port);
  }

  void try_port(std::uint16_t index) {
    for (const auto& address : resolved_)
      candidates_.push_back(base::with_port(address, static_cast<std::uint16_t>(endpoint_.port + index)));
    connect_next();
  }

  void connect_next() {
    const auto address = candidates_.front();
    candidates_.erase(candidates_.begin());
    base::UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return next_or_ended(address, errno);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), base::length_of(address)) == 0)
      return greet(std::move(socket), address);
    if (errno != EINPROGRESS) return next_or_ended(address, errno);
    connecting_ = std::make_shared<asio::posix::stream_descriptor>(io_, socket.release());
    connecting_->async_wait(asio::posix::stream_descriptor::wait_write,
                            [self = shared_from_this(), attempt = connecting_, address](error_code error) {
                              if (error || self->connecting_ != attempt) return;
                              self->connecting_.reset();
                              self->attempt_limit_.cancel();
                              base::UniqueFd connected(attempt->release());
                              int failure = 0;
                              socklen_t length = sizeof failure;
                              ::getsockopt(connected.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
                              if (failure != 0) return self->next_or_ended(address, failure);
                              self->greet(std::move(connected), address);
                            });
    attempt_limit_.expires_after(limit_);
    attempt_limit_.async_wait([self = shared_from_this(), attempt = connecting_, address](error_code error) {
      if (error || self->connecting_ != attempt || !attempt) return;
      self->connecting_.reset();
      self->next_or_ended(address, ETIMEDOUT);
    });
  }

  // One address that refuses tells more of a host than another that is out of reach.
  void next_or_ended(const sockaddr_storage& address, int error) {
    how_ = std::min(how_.value_or(How::silent), how_of(error));
    if (!candidates_.empty()) return connect_next();
    note_answer(*how_);
    ended(*how_, std::string(std::strerror(error)) + " (" + base::address_of(address).text() + ")");
  }

  void greet(base::UniqueFd socket, const sockaddr_storage& address) {
    const Session::Target peer{base::address_of(address).text(), target_port()};
    Channel::Options options;
    options.message_bytes_max = 4u << 20;
    options.heartbeat_timeout = options_.heartbeat_timeout;
    options.handshake_timeout = std::max(1'000ms, options_.heartbeat_timeout);
    options.host = place();
    if (security_) options.tls = {security_, &security_->tls};
    Channel::Handlers handlers;
    handlers.opened = [this, peer] {
      greeted_at_ = since_start();
      step(Session::Connected{peer});
    };
    handlers.message = [this](std::string_view text) { take(text); };
    handlers.closed = [this, peer](const Channel::Closed& how) {
      const auto why = how.why + " (" + peer.address + ")";
      const bool is_final = !how.try_this.empty() && !session_.had_round();
      if (is_final && !may_be_at_another_port()) return take_refusal(why, how.try_this);
      const auto kind = how.by_peer ? How::closed : How::silent;
      note_answer(kind, how.try_this);
      if (is_final && is_refused_everywhere())
        return refuse(reason_with(why, false), text_of(endpoint()), port_answers_.advice());
      ended(kind, why, false, {}, how.is_stranger);
    };
    present_.reset(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
    channel_ = std::make_unique<Channel>(io_, std::move(socket), Channel::Side::client, options, std::move(handlers));
  }

  void take(std::string_view text) {
    try {
      const auto known = to_agent_of(text, workers_);
      if (!known) return;
      const auto& message = *known;
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        refusal_said_.clear();
        clock_offset_ = welcome->job_time - (greeted_at_ + since_start()) / 2;
        if (std::exchange(is_broken_, false)) handlers_.say("connected to the job again, at " + place());
        has_joined_ = true;
        host_place_ = place();
        last_reason_.clear();
        if (target_.address.empty()) endpoint_found_ = EndpointName{endpoint_.host, target_port()};
      }
      const auto* refused = std::get_if<Refused>(&message);
      const bool is_other_job = refused != nullptr && refused->is_other_job;
      // Those count nobody for a node of their job.
      if (is_other_job || std::holds_alternative<Elsewhere>(message)) present_.reset();
      if (is_other_job) note_answer(How::refused);
      if (is_other_job && (may_be_at_another_port() || has_joined_)) tell_of(refused->what);
      // For now: it is tried again.
      if (refused != nullptr && refused->is_round_unknown && session_.had_round() &&
          std::exchange(refusal_said_, refused->what) != refused->what)
        handlers_.say("refused at " + place() + ": " + refused->what + "; " + refused->try_this);
      step(Session::Heard{message});
    } catch (const Error& error) {
      ended(How::closed, error.what());
    }
  }

  void ended(How how, const std::string& why, bool is_host_unknown = false, std::optional<Refused> refused = {},
             bool is_stranger = false) {
    if (!handlers_.message) return;
    hang_up();
    tell_of(why, is_host_unknown);
    is_stranger_there_ = is_stranger;
    step(Session::Ended{how, std::uniform_real_distribution<double>(0, 1)(dice_), is_host_unknown, std::move(refused)});
  }

  void host_is_unknown(const std::string& why) {
    resolved_.clear();
    port_answers_.forget();
    ended(How::silent, why, true);
  }

  // An alert of TLS comes in the clear: anybody on the way can forge one, or answer in the endpoint's place.
  void take_refusal(const std::string& why, const std::string& try_this) {
    if (!security_) return refuse(why, place(), try_this);
    if (why != last_reason_)
      handlers_.say(why + ", which anybody on the way could say; it is tried again for " +
                    describe_duration(session_.refusal_limit()));
    last_reason_ = why;
    is_reason_said_ = true;
    ended(How::closed, why, false, Refused{why, try_this});
  }

  // It is no use to try again.
  void refuse(const std::string& why, const std::string& where, const std::string& try_this) {
    hang_up();
    lose({why, "joining the job at " + where + ", from host " + host_name_, try_this});
  }

  void note_answer(How how, const std::string& try_this = "") {
    if (may_be_at_another_port() && target_.address.empty())
      port_answers_.note(target_port(), how == How::silent, try_this, Clock::now());
  }

  // One of the ports refuses for good. At all others nobody of the job has answered, and the job had the time to come.
  bool is_refused_everywhere() const {
    const auto since = port_answers_.refused_since();
    return since && Clock::now() - *since >= std::min<milliseconds>(kRefusedLimit, options_.join_timeout / 4);
  }

  void hang_up() {
    end_attempt();
    if (!channel_) return;
    if (present_) given_up_.push_back(std::move(present_));
    if (given_up_.size() > kGivenUpMax) given_up_.pop_front();
    channel_.reset();
  }

  void let_go() {
    present_.reset();
    given_up_.clear();
  }

  void end_attempt() {
    is_name_awaited_ = false;
    connecting_.reset();
    attempt_limit_.cancel();
  }

  // --- words ---

  std::uint16_t target_port() const {
    return target_.address.empty() ? static_cast<std::uint16_t>(endpoint_.port + target_.port) : target_.port;
  }

  std::string place() const {
    return text_of({target_.address.empty() ? endpoint_.host : target_.address, target_port()});
  }

  const EndpointName& endpoint() const { return endpoint_found_ ? *endpoint_found_ : endpoint_; }
  bool may_be_at_another_port() const { return endpoint().port_count > 1; }

  // Of all ports of the endpoint, as far as they have been tried.
  std::string reason_with(const std::string& why, bool is_of_all_ports) {
    if (is_of_all_ports) port_answers_.forget_reasons();
    if (is_of_all_ports || !may_be_at_another_port() || !target_.address.empty()) return why;
    return port_answers_.reasons_with(target_port(), why);
  }

  void tell_of(const std::string& why, bool is_of_all_ports = false) {
    is_stranger_there_ = false;
    if (session_.is_joined()) lost_why_ = why;
    if (session_.is_joined() && !std::exchange(is_broken_, true))
      handlers_.say("the connection to the endpoint " + place() + " is lost: " + why + "; it is tried again" +
                    (session_.had_round() ? ", and the workers go on" : ""));
    const auto reason = reason_with(why, is_of_all_ports);
    if (reason != last_reason_) {
      last_reason_ = reason;
      reason_since_ = Clock::now();
      is_reason_said_ = false;
    }
    if (has_joined_ || is_reason_said_ || Clock::now() - reason_since_ < kQuietTime) return;
    is_reason_said_ = true;
    const auto left = std::chrono::duration_cast<milliseconds>(session_.join_deadline() - Clock::now());
    handlers_.say("no answer from " + text_of(endpoint()) + " yet: " + reason + "; it is tried for another " +
                  describe_duration(std::max(left, 0ms)) + ". This host has " + list_of(own_addresses()));
  }

  std::string what_to_try() const {
    if (addresses_.empty())
      return "`getent hosts " + endpoint_.host + "` on this host, or an address in place of the name";
    if (const auto advice = port_answers_.advice(); !advice.empty()) return advice;
    if (may_be_at_another_port())
      return "look at the output of ddprun on " + endpoint_.host +
             ", which opens the first free one of these ports; between the nodes all of them must be open";
    if (is_stranger_there_)
      return "another port, the same on all nodes; `ss -ltnp` on that host shows who has this one";
    return "start ddprun on the node that has one of the endpoint's addresses, with the same endpoint; a node that is "
           "behind "
           "another address (NAT, a service name) serves it with `--rdzv-conf=is_host=true`";
  }

  void lose(const LinkLost& why) {
    const auto lost = handlers_.lost;
    handlers_ = {};
    timer_.cancel();
    hang_up();
    asio::post(io_, [lost, why] { lost(why); });
  }

  asio::io_context& io_;
  EndpointName endpoint_;
  std::optional<EndpointName> endpoint_found_;  // the one port of it at which the job was
  Session::Options options_;
  std::string host_name_, run_id_;
  int workers_;  // of this node
  Handlers handlers_;
  std::shared_ptr<const security::Security> security_;
  asio::steady_timer timer_;  // the session's
  asio::steady_timer attempt_limit_;
  PortAnswers port_answers_;
  const Clock::time_point began_ = Clock::now();
  Session session_;
  MembershipServer* own_ = nullptr;  // the membership, where it is in this process
  std::minstd_rand dice_{std::random_device()()};
  // The last attempt, or the connection that it led to:
  Session::Target target_;
  milliseconds limit_{0};
  bool is_name_awaited_ = false;  // by this attempt
  std::shared_ptr<void> looking_up_;
  Clock::time_point look_up_began_;
  std::optional<Resolved> found_;  // by a look-up that the attempt did not wait for
  std::optional<Clock::time_point> slurm_failed_at_;
  std::string slurm_error_;
  std::vector<sockaddr_storage> candidates_;
  std::optional<How> how_;
  std::shared_ptr<asio::posix::stream_descriptor> connecting_;
  std::unique_ptr<Channel> channel_;
  // Duplicates of its socket, and of those that this side has given up. Their other sides hear of an end only with that
  // of this process, or when the agent is done: they take the end of a connection that is not resumed for that of the
  // node, and workers may still run here.
  base::UniqueFd present_;
  std::deque<base::UniqueFd> given_up_;
  std::string slurm_address_;               // of the endpoint's host, where its name does not resolve
  std::vector<std::string> addresses_;      // of the endpoint
  std::vector<sockaddr_storage> resolved_;  // the same, to connect to
  milliseconds greeted_at_{0}, clock_offset_{0};
  std::string last_reason_, refusal_said_;
  std::string host_place_, lost_why_;  // of the last one that welcomed this agent, and why its connection ended
  Clock::time_point reason_since_;
  int attempts_ = 0;
  bool is_stranger_there_ = false;  // what answered last is no ddprun
  bool is_reason_said_ = false, has_joined_ = false, is_broken_ = false;
};

MembershipClient::MembershipClient(asio::io_context& io, EndpointName endpoint, Session::Options options, Hello hello,
                                   Handlers handlers, std::shared_ptr<const security::Security> security)
    : impl_(std::make_shared<Impl>(io, std::move(endpoint), options, std::move(hello), std::move(handlers),
                                   std::move(security))) {}

MembershipClient::~MembershipClient() { impl_->stop(); }
void MembershipClient::begin() { impl_->begin(); }
void MembershipClient::host(MembershipServer& membership) { impl_->host(membership); }
void MembershipClient::hear(const ToAgent& message) { impl_->hear(message); }
void MembershipClient::step_down(const std::string& why) { impl_->step_down(why); }
void MembershipClient::send(const ToMembership& message) { impl_->step(Session::Said{message}); }
bool MembershipClient::is_joined() const { return impl_->is_joined(); }
milliseconds MembershipClient::job_time() const { return impl_->job_time(); }
std::optional<Session::Target> MembershipClient::whereabouts() const { return impl_->whereabouts(); }
std::string MembershipClient::endpoint_host() const { return impl_->endpoint_host(); }
void MembershipClient::finish(std::function<void()> done) { impl_->finish(std::move(done)); }

}  // namespace ddp::rendezvous
