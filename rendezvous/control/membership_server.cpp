#include "rendezvous/control/membership_server.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <set>
#include <utility>

#include "base/line_log.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "rendezvous/control/message_json.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr NodeId kOwnNode{0};
constexpr std::size_t kSparesMax = 256;
constexpr std::size_t kRefusedMax = 256;  // whose connections are still open
constexpr std::chrono::milliseconds kFarewellLimit{5'000};

MembershipOptions with_nonces(MembershipOptions options) {
  options.nonce = base::random_key;
  return options;
}

}  // namespace

class MembershipServer::Impl : public std::enable_shared_from_this<MembershipServer::Impl> {
 public:
  Impl(asio::io_context& io, MembershipOptions options, Handlers handlers)
      : io_(io), handlers_(std::move(handlers)), timer_(io), membership_(with_nonces(std::move(options)), began_) {}

  void start() { wait_for_deadline(); }

  void send(const ToMembership& message) {
    asio::post(io_, [self = shared_from_this(), message] {
      if (self->stopped_) return;
      if (const auto* hello = std::get_if<Hello>(&message)) {
        self->tell(kOwnNode, Welcome{self->job_time()});
        self->step(Joined{kOwnNode, *hello, {}, true});
      } else {
        self->step(Heard{kOwnNode, message});
      }
    });
  }

  std::chrono::milliseconds job_time() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_);
  }

  void take_in(std::unique_ptr<Channel> channel, const std::string& address, Hello hello) {
    const NodeId id{++nodes_seen_};
    auto& session = sessions_[id];
    session.channel = std::move(channel);
    session.channel->hand_over({{},
                                [this, id](std::string_view text) { take(id, text); },
                                [this, id](const Channel::Closed& how) { lose(id, how); }});
    if (stopped_ || is_finishing_ || (membership_.is_finished() && !membership_.knows(hello.node_key)))
      return bid_farewell(id);
    if (const auto refused = membership_.other_job(hello)) return tell(id, *refused);
    const auto sessions_max = static_cast<std::size_t>(membership_.nodes_max_for(hello)) + kSparesMax;
    if (sessions_.size() - refused_.size() > sessions_max && !membership_.knows(hello.node_key))
      return tell(id, Refused{"the job has " + std::to_string(sessions_max) + " nodes and spares already",
                              "fewer spares, or a larger --nnodes", false, hello.held.has_value()});
    const Welcome welcome{job_time(), membership_.is_full() && !membership_.knows(hello.node_key)};
    const auto actions = membership_.step(Joined{id, std::move(hello), address, false}, Clock::now());
    if (!is_refused(actions, id)) tell(id, welcome);
    perform(actions);
  }

  bool take_farewell(const std::string& node_key) {
    if (stopped_ || !membership_.knows(node_key)) return false;
    step(Farewell{node_key});
    return true;
  }

  const Membership& membership() const { return membership_; }
  bool is_over() const { return sessions_.empty() && (membership_.is_finished() || membership_.is_abandoned()); }

  void finish(std::function<void()> done) {
    timer_.cancel();
    is_finishing_ = true;
    finished_ = std::move(done);
    for (auto& [id, session] : sessions_)
      if (!session.is_leaving) bid_farewell(id);
    if (sessions_.empty()) return tell_finished();
    timer_.expires_after(kFarewellLimit);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      self->drop_all();
      self->tell_finished();
    });
  }

  void stop() {
    stopped_ = true;
    handlers_ = {};
    finished_ = nullptr;
    drop_all();
    timer_.cancel();
  }

 private:
  struct Session {
    std::unique_ptr<Channel> channel;
    bool is_leaving = false;
  };

  void take(NodeId id, std::string_view text) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.is_leaving) return;
    try {
      const auto message = to_membership_of(text);
      if (std::holds_alternative<Hello>(message)) throw Error("malformed message: hello comes first, and once");
      step(Heard{id, message});
    } catch (const Error& error) {
      lose(id, {error.what()});
    }
  }

  void lose(NodeId id, const Channel::Closed& how) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    const bool is_leaving = found->second.is_leaving;
    discard(id);
    if (is_leaving) return;
    if (how.by_peer)
      step(Disconnected{id, how.why});
    else
      step(Left{id, how.why, false});
  }

  void drop_all() {
    sessions_.clear();
    refused_.clear();
  }

  void discard(NodeId id) {
    sessions_.erase(id);
    refused_.erase(id);
    if (finished_ && sessions_.empty()) tell_finished();
  }

  static bool is_refused(const Membership::Actions& actions, NodeId id) {
    return std::any_of(actions.begin(), actions.end(), [id](const MembershipAction& action) {
      const auto* send = std::get_if<Send>(&action);
      return send != nullptr && send->to == id && std::holds_alternative<Refused>(send->message);
    });
  }

  void step(const MembershipEvent& event) { perform(membership_.step(event, Clock::now())); }

  void perform(const Membership::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) tell(send->to, send->message);
      if (const auto* drop = std::get_if<Drop>(&action); drop != nullptr && sessions_.count(drop->node) != 0)
        discard(drop->node);
      if (const auto* step_down = std::get_if<StepDown>(&action)) dissolve(step_down->why);
      if (const auto* say = std::get_if<Say>(&action)) log_(say->text);
    }
    wait_for_deadline();
  }

  void say(const std::string& line) {
    asio::post(io_, [self = shared_from_this(), line] {
      if (self->handlers_.say) self->handlers_.say(line);
    });
  }

  void tell(NodeId id, const ToAgent& message) {
    if (id == kOwnNode)
      return asio::post(io_, [self = shared_from_this(), message] {
        if (self->handlers_.message) self->handlers_.message(message);
      });
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    if (told_text_.empty() || told_ != message) told_text_ = to_json(told_ = message);
    found->second.channel->send(told_text_);
    if (std::holds_alternative<Refused>(message)) return refuse(id);
    if (std::holds_alternative<FinishJob>(message)) bid_farewell(id);
  }

  // It has been told. Whoever does not close its connection then is not waited for where others are to be told too.
  void refuse(NodeId id) {
    bid_farewell(id);
    refused_.insert(id);
    if (refused_.size() > kRefusedMax) discard(*refused_.begin());
  }

  void dissolve(const std::string& why) {
    if (!handlers_.stepped_down) {
      FinishJob verdict;
      verdict.exit_code = kRendezvousFailed;
      verdict.what = why;
      verdict.try_this =
          "look at the network between the nodes; when it works, start the job again from its newest checkpoint";
      for (const auto& [id, session] : sessions_)
        if (!session.is_leaving) tell(id, verdict);
      return;
    }
    asio::post(io_, [self = shared_from_this(), stepped_down = handlers_.stepped_down, why] { stepped_down(why); });
    stop();
  }

  void bid_farewell(NodeId id) {
    auto& session = sessions_.at(id);
    session.is_leaving = true;
    session.channel->finish([weak = weak_from_this(), id] {
      if (const auto self = weak.lock(); self && self->sessions_.count(id) != 0) self->discard(id);
    });
  }

  void tell_finished() {
    if (finished_) asio::post(io_, std::exchange(finished_, nullptr));
  }

  void wait_for_deadline() {
    if (is_finishing_) return;  // the timer has another use then
    const auto deadline = membership_.next_deadline();
    timer_.cancel();
    if (!deadline || stopped_) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self && !self->stopped_) self->perform(self->membership_.tick(Clock::now()));
    });
  }

  asio::io_context& io_;
  Handlers handlers_;
  asio::steady_timer timer_;
  const Clock::time_point began_ = Clock::now();
  Membership membership_;
  std::uint64_t nodes_seen_ = 0;
  std::map<NodeId, Session> sessions_;  // of other nodes
  std::set<NodeId> refused_;            // of them, the oldest first
  ToAgent told_;                        // the last one, and its text: much is said to all nodes alike
  std::string told_text_;
  base::BoundedLog log_{io_, [this](const std::string& line) { say(line); }};
  std::function<void()> finished_;
  bool is_finishing_ = false, stopped_ = false;
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
bool MembershipServer::take_farewell(const std::string& node_key) { return impl_->take_farewell(node_key); }
const Membership& MembershipServer::membership() const { return impl_->membership(); }
bool MembershipServer::is_over() const { return impl_->is_over(); }

}  // namespace ddp::rendezvous
