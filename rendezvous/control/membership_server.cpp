#include "rendezvous/control/membership_server.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "base/line_limit.hpp"
#include "base/line_log.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "rendezvous/control/log_events.hpp"
#include "rendezvous/host/host_core.hpp"
#include "rendezvous/wire/message_json.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

// Limits of the log, per job.
constexpr int kLogLinesAtOnce = 100, kDebugLinesAtOnce = 5'000;
constexpr milliseconds kLogLinePeriod{2'000}, kDebugLinePeriod{20};

std::string count_alone(const std::string&, std::size_t count) { return std::to_string(count); }

MembershipOptions with_nonces(MembershipOptions options) {
  options.nonce = base::random_key;
  return options;
}

}  // namespace

class MembershipServer::Impl : public std::enable_shared_from_this<MembershipServer::Impl> {
 public:
  Impl(asio::io_context& io, MembershipOptions options, Handlers handlers)
      : io_(io),
        handlers_(std::move(handlers)),
        timer_(io),
        core_(with_nonces(std::move(options)), handlers_.stepped_down != nullptr, Clock::now()) {}

  void start() { wait_for_deadline(); }

  void send(const ToMembership& message) {
    asio::post(io_, [self = shared_from_this(), message] {
      if (!self->stopped_) self->step(HostCore::OwnAgentSaid{message});
    });
  }

  std::chrono::milliseconds job_time() const { return core_.job_time(Clock::now()); }

  void take_in(std::unique_ptr<Channel> channel, const std::string& address, Hello hello) {
    const NodeId id = core_.new_node();
    auto& peer = peers_[id] = {std::move(channel), hello.host_name};
    peer.channel->hand_over({{},
                             [this, id](std::string_view text) { take(id, text); },
                             [this, id](const Channel::Closed& how) { lose(id, how.why, how.by_peer); }});
    step(HostCore::Came{id, std::move(hello), address});
  }

  bool take_farewell(const NodeEnded& node) {
    if (!core_.knows(node.node_key)) return false;
    step(HostCore::GuardianSaid{node.node_key, node.signal_number});
    return true;
  }

  void take_answer(const StopRound& message, const Elsewhere& from) {
    if (!stopped_) step(HostCore::CallAnswered{message, from});
  }

  const HostCore& core() const { return core_; }

  void finish(std::function<void()> done) {
    finished_ = std::move(done);
    step(HostCore::OwnAgentFinished{});
  }

  void stop() {
    stopped_ = true;
    handlers_ = {};
    finished_ = nullptr;
    peers_.clear();
    timer_.cancel();
  }

 private:
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::string host;
  };

  void take(NodeId id, std::string_view text) {
    try {
      if (auto message = to_membership_of(text)) step(Heard{id, std::move(*message)});
    } catch (const Error& error) {
      lose(id, error.what(), false);
    }
  }

  void lose(NodeId id, const std::optional<std::string>& why, bool by_peer) {
    HostCore::Ended ended{id, why, by_peer};
    end(ended);
    perform(core_.step(std::move(ended), Clock::now()));
  }

  void end(const HostCore::Ended& connection) {
    log_event(connection);
    peers_.erase(connection.node);
  }

  void step(HostCore::Event event) {
    log_event(event);
    perform(core_.step(std::move(event), Clock::now()));
  }

  void perform(HostCore::Actions actions) {
    for (auto& action : actions) {
      log_action(action);
      std::visit([this](auto& what) { perform(what); }, action);
    }
    log_phase();
    wait_for_deadline();
  }

  void perform(HostCore::Tell& action) {
    const auto found = peers_.find(action.node);
    if (found == peers_.end()) return;
    if (told_text_.empty() || told_ != action.message) told_text_ = to_json(told_ = std::move(action.message));
    found->second.channel->send(told_text_);
  }

  void perform(const HostCore::TellOwnAgent& action) {
    asio::post(io_, [self = shared_from_this(), message = action.message] {
      if (self->handlers_.message) self->handlers_.message(message);
    });
  }

  void perform(const HostCore::Close& action) {
    const auto found = peers_.find(action.node);
    if (found == peers_.end()) return;
    found->second.channel->finish([weak = weak_from_this(), id = action.node] {
      if (const auto self = weak.lock(); self && self->peers_.count(id) != 0) self->lose(id, {}, false);
    });
  }

  void perform(const HostCore::Drop& action) {
    end({action.node, "its connection was replaced or is not wanted"});  // the core gets no Ended for it
  }
  void perform(const HostCore::Print& action) { log_(action.line); }

  void perform(const HostCore::StepDown& action) {
    asio::post(io_,
               [self = shared_from_this(), stepped_down = handlers_.stepped_down, action] { stepped_down(action); });
    stop();
  }

  void perform(const HostCore::Finish&) {
    if (finished_) asio::post(io_, std::exchange(finished_, nullptr));
  }

  void log_event(const HostCore::Event& event) {
    const auto* came = std::get_if<HostCore::Came>(&event);
    const auto* heard = std::get_if<Heard>(&event);
    const auto* ended = std::get_if<HostCore::Ended>(&event);
    if (heard != nullptr && std::holds_alternative<TimeAsked>(heard->message)) return;  // every few seconds
    const bool is_loss = ended != nullptr && ended->why && !core_.verdict();
    const auto node = came ? came->node : heard ? heard->from : ended ? ended->node : NodeId{};
    log(is_loss ? base::LogLevel::warning : log_level_of(event), node, event);
  }

  void log_action(const HostCore::Action& action) {
    const auto* tell = std::get_if<HostCore::Tell>(&action);
    const auto* print = std::get_if<HostCore::Print>(&action);
    const auto node = tell ? tell->node : print && print->node ? *print->node : NodeId{};
    if (const auto level = log_level_of(action)) log(*level, node, action);
  }

  // At a limited rate, because peers cause events. What is left out costs no text.
  template <class What>
  void log(base::LogLevel level, NodeId node, const What& what) {
    if (!handlers_.log) return;
    auto& limit = level == base::LogLevel::debug ? debug_limit_ : log_limit_;
    const auto left_out = limit.take("", Clock::now());
    if (!left_out) return;
    base::LogFields where;
    if (const auto peer = peers_.find(node); peer != peers_.end()) where.add("node", peer->second.host);
    auto event = log_event_of(what);
    event.level = level;
    handlers_.log(event, where.add_if_any("left_out", *left_out));
  }

  // If it has changed. That all nodes are gone is said once in a round: peers cause it.
  void log_phase() {
    const auto& membership = core_.membership();
    const auto round = membership.last_round().key();
    const bool was_deserted = std::get<1>(logged_phase_) == round && std::get<4>(logged_phase_);
    auto now = std::tuple(membership.phase_name(), round, membership.restart_count(), core_.verdict().has_value(),
                          was_deserted || core_.is_deserted());
    if (now == logged_phase_ || !handlers_.log) return;
    logged_phase_ = now;
    handlers_.log(log_event_of(core_), {});
  }

  void print(const std::string& line) {
    asio::post(io_, [self = shared_from_this(), line] {
      if (self->handlers_.print) self->handlers_.print(line);
    });
  }

  void wait_for_deadline() {
    const auto deadline = stopped_ ? std::nullopt : core_.next_deadline();
    if (std::exchange(waits_for_, deadline) == deadline) return;
    timer_.cancel();
    if (!deadline) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (error || !self || self->stopped_) return;
      self->waits_for_.reset();
      self->perform(self->core_.tick(Clock::now()));
    });
  }

  asio::io_context& io_;
  Handlers handlers_;
  asio::steady_timer timer_;
  HostCore core_;
  std::optional<TimePoint> waits_for_;  // the timer does
  std::map<NodeId, Peer> peers_;        // connections of other nodes
  std::tuple<std::string_view, decltype(RoundId().key()), int, bool, bool> logged_phase_;
  base::LineLimit log_limit_{kLogLinesAtOnce, kLogLinePeriod, &count_alone};
  base::LineLimit debug_limit_{kDebugLinesAtOnce, kDebugLinePeriod, &count_alone};
  ToAgent told_;  // the last one, and its text: much is said to all nodes alike
  std::string told_text_;
  base::BoundedLog log_{io_, [this](const std::string& line) { print(line); }};
  std::function<void()> finished_;
  bool stopped_ = false;
};

MembershipServer::MembershipServer(asio::io_context& io, MembershipOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(handlers))) {
  impl_->start();
}

MembershipServer::~MembershipServer() { impl_->stop(); }
void MembershipServer::send(const ToMembership& message) { impl_->send(message); }
std::chrono::milliseconds MembershipServer::job_time() const { return impl_->job_time(); }
void MembershipServer::finish(std::function<void()> done) { impl_->finish(std::move(done)); }
void MembershipServer::take_in(std::unique_ptr<Channel> channel, const std::string& address, Hello hello) {
  impl_->take_in(std::move(channel), address, std::move(hello));
}
void MembershipServer::take_answer(const StopRound& message, const Elsewhere& from) {
  impl_->take_answer(message, from);
}

bool MembershipServer::take_farewell(const NodeEnded& node) { return impl_->take_farewell(node); }
const Membership& MembershipServer::membership() const { return impl_->core().membership(); }
bool MembershipServer::is_over() const { return impl_->core().is_over(); }

}  // namespace ddp::rendezvous
