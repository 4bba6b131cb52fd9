#include "rendezvous/link/membership_client.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <random>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/link/connecting.hpp"
#include "rendezvous/link/endpoint_addresses.hpp"
#include "rendezvous/link/given_up.hpp"
#include "rendezvous/link/link_words.hpp"
#include "rendezvous/link/port_answers.hpp"
#include "rendezvous/link/resolver.hpp"
#include "rendezvous/wire/channel.hpp"
#include "rendezvous/wire/message_json.hpp"

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

Session::Options with_ports(Session::Options options, int count) {
  options.endpoint_ports = count;
  return options;
}

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
        addresses_(io, endpoint_),
        port_answers_(endpoint_),
        session_(options_, std::move(hello), Clock::now()) {}

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

  void step_down(const Session::SteppedDown& how) {
    own_ = nullptr;
    call_.reset();
    called_.reset();
    step(how);
  }

  bool is_joined() const { return session_.is_joined(); }
  milliseconds job_time() const { return own_ != nullptr ? own_->job_time() : session_.clock().job_time(Clock::now()); }
  milliseconds job_time_error() const { return own_ != nullptr ? 0ms : session_.clock().error(Clock::now()); }
  std::optional<Session::Target> whereabouts() const { return session_.whereabouts(); }
  std::vector<Session::Target> farewell_targets() const { return session_.farewell_targets(); }

  bool take_farewell(const NodeEnded& node) {
    const bool is_known = session_.knows_host(node.node_key);
    step(Session::GuardianSaid{node.node_key, node.signal_number});
    return is_known;
  }
  std::string endpoint_host() const { return target_.address.empty() ? addresses_.host() : target_.address; }

  void finish(std::function<void()> done) {
    handlers_ = {};
    timer_.cancel();
    addresses_.stop();
    attempt_.reset();
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
    addresses_.stop();
    attempt_.reset();
    let_go();
    channel_.reset();
    own_ = nullptr;
  }

 private:
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

  void perform(const Session::HangUp& action) {
    if (action.is_end_told) present_.reset();
    hang_up();
  }

  void perform(const Session::Send& action) {
    if (own_ != nullptr) return own_->send(action.message);
    if (channel_) channel_->send(to_json(action.message));
  }

  void perform(const Session::HandOn& action) {
    const auto handler = handlers_.message;
    handler(action.message);
  }

  void perform(const Session::Serve& action) {
    handlers_.print(serves_from_now_text(host_place_, lost_why_));
    asio::post(io_, [serve = handlers_.serve, action] { serve(action.lost); });
  }

  void perform(const Session::StopOrphans& action) {
    asio::post(io_, [stop = handlers_.stop_orphans, action] { stop(action); });
  }

  void perform(const Session::GiveUp& action) {
    std::visit([this](const auto& why) { give_up(why); }, action.why);
  }

  void give_up(const Refused& refused) {
    lose({refused.what, own_ != nullptr ? kJoining : joining_text(place(), host_name_), refused.try_this});
  }

  void give_up(const Session::AllPortsRefuse&) {
    lose({last_reason_, joining_text(text_of(endpoint()), host_name_), port_answers_.advice().value_or(what_to_try())});
  }

  void give_up(const Session::NobodyAnswers&) {
    const auto lost_job = [this] {
      return LostJob{run_id_, host_name_, text_of(endpoint()), last_reason_, options_.join_timeout};
    };
    if (has_joined_) return lose(job_gone_error(lost_job()));
    if (last_reason_.empty()) last_reason_ = addresses_.is_looking_up() ? kLookUpGoesOn : kNoAnswerToHello;
    lose(no_answer_error(lost_job(), {attempts_, addresses_.texts(), own_addresses()}, what_to_try()));
  }

  // --- one attempt, and the connection that it leads to ---

  void perform(const Session::Connect& action) {
    ++attempts_;
    target_ = action.to;
    attempt_.emplace(io_, addresses_, target_, connecting(action.limit, place()), [this](Connecting::Outcome outcome) {
      const auto self = shared_from_this();
      attempt_.reset();
      std::visit([this](auto& what) { take(std::move(what)); }, outcome);
    });
  }

  Connecting::Options connecting(milliseconds limit, const std::string& place) const {
    Connecting::Options options;
    options.limit = limit;
    options.channel.message_bytes_max = 4u << 20;
    options.channel.heartbeat_timeout = options_.heartbeat_timeout;
    options.channel.handshake_timeout = std::max(1'000ms, options_.heartbeat_timeout);
    options.channel.host = place;
    if (security_) options.channel.tls = {security_, &security_->tls};
    return options;
  }

  // Whatever comes back, if it is not that the job goes on there, or nothing: the next call is made all the same, in
  // place of one that has not been answered. (A host that was down when that one began is asked again by its kernel
  // after a second, then two, then four.)
  void perform(const Session::Call& action) {
    call_.reset();
    called_.reset();
    const auto port = static_cast<std::uint16_t>(endpoint_.port + action.to.port);
    const auto place = text_of({endpoint_.host, port});
    call_.emplace(io_, addresses_, action.to, connecting(options_.heartbeat_timeout, place),
                  [this, port](Connecting::Outcome outcome) {
                    const auto self = shared_from_this();
                    call_.reset();
                    auto* reached = std::get_if<Reached>(&outcome);
                    if (reached == nullptr) return;
                    const Elsewhere from{reached->peer, port};
                    called_ = std::move(reached->channel);
                    called_->hand_over({{},
                                        [this, from](std::string_view text) { take_answer(text, from); },
                                        [this](const Channel::Closed&) { called_.reset(); }});
                    called_->send(to_json(ToMembership(session_.hello_of_call())));
                  });
  }

  void take_answer(std::string_view text, const Elsewhere& from) {
    try {
      const auto known = to_agent_of(text, workers_);
      const auto* stop = known ? std::get_if<StopRound>(&*known) : nullptr;
      if (stop != nullptr && own_ != nullptr) own_->take_answer(*stop, from);
    } catch (const Error&) {  // a stranger is there
    }
  }

  void take(Reached reached) {
    const Session::Target peer{reached.peer, target_port()};
    present_ = std::move(reached.duplicate);
    channel_ = std::move(reached.channel);
    channel_->hand_over({{},
                         [this](std::string_view text) { take(text); },
                         [this, peer](const Channel::Closed& how) { take(unreached(how, peer.address)); }});
    step(Session::Connected{peer});
  }

  // An alert of TLS comes in the clear: anybody on the way can forge one, or answer in the endpoint's place.
  void take(const Unreached& what) {
    const bool can_be_forged = security_ != nullptr;
    const bool is_tried_for_a_while =
        what.try_this && can_be_forged && !session_.had_round() && !may_be_at_another_port();
    if (is_tried_for_a_while) tell_of_refusal(what.why);
    ended(what,
          what.try_this ? std::optional(Session::Refusal{{what.why, *what.try_this}, can_be_forged}) : std::nullopt);
  }

  void take(std::string_view text) {
    try {
      const auto known = to_agent_of(text, workers_);
      if (!known) return;
      const auto& message = *known;
      if (std::holds_alternative<Welcome>(message)) {
        refusal_said_.clear();
        if (std::exchange(is_broken_, false)) handlers_.print(connected_again_text(place()));
        has_joined_ = true;
        host_place_ = place();
        last_reason_.clear();
        if (target_.address.empty()) endpoint_found_ = EndpointName{endpoint_.host, target_port()};
      }
      if (const auto* leaves = std::get_if<HostLeaves>(&message)) lost_why_ = leaves->why.value_or(kHostHasLeft);
      const auto* refused = std::get_if<Refused>(&message);
      const bool is_other_job = refused != nullptr && refused->is_other_job;
      if (is_other_job) note_answer({});
      if (is_other_job && (may_be_at_another_port() || has_joined_)) tell_of(refused->what);
      // For now: it is tried again.
      if (refused != nullptr && refused->is_round_unknown && session_.had_round() &&
          std::exchange(refusal_said_, refused->what) != refused->what)
        handlers_.print(refused_for_now_text(place(), *refused));
      step(Session::Heard{message});
    } catch (const Error& error) {
      ended({How::closed, error.what()});
    }
  }

  void ended(const Unreached& what, std::optional<Session::Refusal> refusal = {}) {
    if (!handlers_.message) return;
    hang_up();
    if (what.is_host_unknown)
      port_answers_.forget();
    else
      note_answer(what.try_this);
    tell_of(what.why, what.is_host_unknown);
    is_stranger_there_ = what.is_stranger;
    step(Session::Ended{what.how, std::uniform_real_distribution<double>(0, 1)(dice_), what.is_host_unknown,
                        std::move(refusal)});
  }

  void note_answer(const std::optional<std::string>& try_this) {
    if (may_be_at_another_port() && target_.address.empty()) port_answers_.note(target_port(), try_this);
  }

  void hang_up() {
    attempt_.reset();
    if (!channel_) return;
    if (present_) given_up_.add(std::move(present_));
    channel_.reset();
  }

  void let_go() {
    call_.reset();
    called_.reset();
    present_.reset();
    given_up_.take_all();
  }

  // --- words ---

  std::uint16_t target_port() const {
    return target_.address.empty() ? static_cast<std::uint16_t>(endpoint_.port + target_.port) : target_.port;
  }

  std::string place() const {
    return text_of({target_.address.empty() ? endpoint_.host : target_.address, target_port()});
  }

  void tell_of_refusal(const std::string& why) {
    if (why != last_reason_) handlers_.print(forgeable_refusal_text(why, session_.refusal_limit()));
    last_reason_ = why;
    is_reason_said_ = true;
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
      handlers_.print(connection_lost_text(place(), why, session_.had_round(),
                                           session_.had_round() ? options_.orphan_limit : options_.join_timeout));
    const auto reason = reason_with(why, is_of_all_ports);
    if (reason != last_reason_) {
      last_reason_ = reason;
      reason_since_ = Clock::now();
      is_reason_said_ = false;
    }
    if (has_joined_ || is_reason_said_ || Clock::now() - reason_since_ < kQuietTime) return;
    is_reason_said_ = true;
    const auto left = std::chrono::duration_cast<milliseconds>(session_.join_deadline() - Clock::now());
    handlers_.print(no_answer_yet_text(text_of(endpoint()), reason, std::max(left, 0ms), own_addresses()));
  }

  std::string what_to_try() const {
    if (addresses_.texts().empty()) return unknown_name_advice(endpoint_.host);
    if (const auto advice = port_answers_.advice()) return *advice;
    if (may_be_at_another_port()) return several_ports_advice(endpoint_.host);
    return is_stranger_there_ ? kStrangerAdvice : kStartAdvice;
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
  EndpointAddresses addresses_;
  PortAnswers port_answers_;
  Session session_;
  MembershipServer* own_ = nullptr;  // the membership, where it is in this process
  std::minstd_rand dice_{std::random_device()()};
  Session::Target target_;             // of the last attempt, or of the connection that it led to
  std::optional<Connecting> attempt_;  // while it is under way
  std::unique_ptr<Channel> channel_;   // the connection
  std::optional<Connecting> call_;     // of the endpoint, while another host's place is taken here
  std::unique_ptr<Channel> called_;
  // Duplicates of its socket, and of those that this side has given up. Their other sides hear of an end only with that
  // of this process, or when the agent is done: they take the end of a connection that is not resumed for that of the
  // node, and workers may still run here.
  base::UniqueFd present_;
  GivenUp<base::UniqueFd> given_up_;
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
void MembershipClient::step_down(const Session::SteppedDown& how) { impl_->step_down(how); }
void MembershipClient::send(const ToMembership& message) { impl_->step(Session::Said{message}); }
bool MembershipClient::is_joined() const { return impl_->is_joined(); }
milliseconds MembershipClient::job_time() const { return impl_->job_time(); }
milliseconds MembershipClient::job_time_error() const { return impl_->job_time_error(); }
std::optional<Session::Target> MembershipClient::whereabouts() const { return impl_->whereabouts(); }
std::vector<Session::Target> MembershipClient::farewell_targets() const { return impl_->farewell_targets(); }
bool MembershipClient::take_farewell(const NodeEnded& node) { return impl_->take_farewell(node); }
std::string MembershipClient::endpoint_host() const { return impl_->endpoint_host(); }
void MembershipClient::finish(std::function<void()> done) { impl_->finish(std::move(done)); }

}  // namespace ddp::rendezvous
