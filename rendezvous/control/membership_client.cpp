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
#include <optional>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/message_json.hpp"
#include "rendezvous/control/resolver.hpp"
#include "rendezvous/io/address.hpp"
#include "rendezvous/io/host_and_port.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

namespace {

constexpr auto kConnectLimit = 5s;        // for one address; a host that is down answers nothing
constexpr auto kPauseFirst = 50ms;        // between attempts, growing
constexpr auto kPauseMax = 1'000ms;
constexpr auto kQuietTime = 2s;           // nodes that are started together need not be told of each other's delay
constexpr auto kFarewellLimit = 1'000ms;
constexpr std::size_t kAddressesShown = 6;

std::string list_of(const std::vector<std::string>& texts) {
  std::string out;
  for (std::size_t i = 0; i < texts.size() && i < kAddressesShown; ++i) out += (i == 0 ? "" : ", ") + texts[i];
  if (texts.size() > kAddressesShown) out += " and " + std::to_string(texts.size() - kAddressesShown) + " more";
  return texts.empty() ? "none" : out;
}

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace

std::string text_of(const EndpointName& endpoint) {
  return io::host_and_port(endpoint.host, endpoint.port);
}

class MembershipClient::Impl : public std::enable_shared_from_this<MembershipClient::Impl> {
 public:
  Impl(asio::io_context& io, EndpointName endpoint, milliseconds join_timeout, milliseconds heartbeat_timeout,
       Handlers handlers, std::shared_ptr<const security::Security> security)
      : io_(io),
        endpoint_(std::move(endpoint)),
        join_timeout_(join_timeout),
        heartbeat_timeout_(heartbeat_timeout),
        handlers_(std::move(handlers)),
        security_(std::move(security)),
        timer_(io) {}

  void send(const ToMembership& message) {
    if (const auto* hello = std::get_if<Hello>(&message)) {
      hello_ = *hello;
      return asio::post(io_, [self = shared_from_this()] { self->begin_attempt(); });
    }
    if (channel_ && has_joined_) channel_->send(to_json(message));
  }

  milliseconds job_time() const { return since_start() + clock_offset_; }

  void finish(std::function<void()> done) {
    handlers_ = {};
    timer_.cancel();
    looking_up_.reset();
    connecting_.reset();
    kept_open_.reset();
    if (!channel_) return asio::post(io_, std::move(done));
    const auto both = std::make_shared<std::function<void()>>(std::move(done));
    const auto once = [both] {
      if (*both) std::exchange(*both, nullptr)();
    };
    timer_.expires_after(kFarewellLimit);
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
    connecting_.reset();
    channel_.reset();
    kept_open_.reset();
  }

 private:
  milliseconds since_start() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - began_); }

  // --- one attempt: resolve, connect to one address after another, WebSocket, hello ---

  void begin_attempt() {
    if (!handlers_.message) return;
    ++attempts_;
    looking_up_ = resolve(io_, endpoint_.host, endpoint_.port, [this](const Resolved& resolved) {
      looking_up_.reset();
      addresses_.clear();
      for (const auto& address : resolved.addresses) addresses_.push_back(io::address_of(address).text());
      if (!resolved.error.empty()) return try_later(resolved.error);
      candidates_ = resolved.addresses;
      connect_next();
    });
    wait_for_join_deadline();
  }

  void connect_next() {
    const auto address = candidates_.front();
    candidates_.erase(candidates_.begin());
    const auto shown = io::address_of(address).text();
    io::UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return next_or_later(shown, errno);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length_of(address)) == 0)
      return greet(std::move(socket), shown);
    if (errno != EINPROGRESS) return next_or_later(shown, errno);
    connecting_ = std::make_shared<asio::posix::stream_descriptor>(io_, socket.release());
    connecting_->async_wait(
        asio::posix::stream_descriptor::wait_write, [self = shared_from_this(), attempt = connecting_, shown](error_code error) {
          if (error || self->connecting_ != attempt) return;
          self->connecting_.reset();
          io::UniqueFd connected(attempt->release());
          int failure = 0;
          socklen_t length = sizeof failure;
          ::getsockopt(connected.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
          if (failure != 0) return self->next_or_later(shown, failure);
          self->greet(std::move(connected), shown);
        });
    timer_.expires_after(std::min<Clock::duration>(kConnectLimit, time_left()));
    timer_.async_wait([self = shared_from_this(), attempt = connecting_, shown](error_code error) {
      if (error || self->connecting_ != attempt || !attempt) return;
      self->connecting_.reset();
      self->next_or_later(shown, ETIMEDOUT);
    });
  }

  void next_or_later(const std::string& address, int error) {
    timer_.cancel();
    if (!candidates_.empty()) return connect_next();
    try_later(std::string(std::strerror(error)) + " (" + address + ")");
  }

  void greet(io::UniqueFd socket, const std::string& address) {
    Channel::Options options;
    options.message_bytes_max = 4u << 20;
    options.heartbeat_timeout = heartbeat_timeout_;
    options.handshake_timeout = std::max(1'000ms, heartbeat_timeout_);
    options.host = text_of(endpoint_);
    if (security_) options.tls = {security_, &security_->tls};
    Channel::Handlers handlers;
    handlers.opened = [this] {
      greeted_at_ = since_start();
      channel_->send(to_json(ToMembership(*hello_)));
    };
    handlers.message = [this](std::string_view text) { take(text); };
    handlers.closed = [this, address](const Channel::Closed& how) { 
      const auto why = how.why + " (" + address + ")";
      how.try_this.empty() || had_round_ ? disconnected(why) : refuse(why, how.try_this);
    };
    wait_for_join_deadline();
    kept_open_.reset(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
    channel_ = std::make_unique<Channel>(io_, std::move(socket), Channel::Side::client, options, std::move(handlers));
  }

  void take(std::string_view text) {
    try {
      const auto message = to_agent_of(text);
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        clock_offset_ = welcome->job_time - (greeted_at_ + since_start()) / 2;
        has_joined_ = true;
        timer_.cancel();  // from here on membership says who is missing, and a spare waits as long as the job lasts
      }
      if (const auto* refused = std::get_if<Refused>(&message))
        return lose({refused->what, "joining the job at " + text_of(endpoint_), refused->try_this});
      if (std::holds_alternative<StartRound>(message) || std::holds_alternative<OpenStore>(message)) {
        had_round_ = true;
        timer_.cancel();
      }
      if (std::holds_alternative<FinishJob>(message)) is_over_ = true;
      const auto handler = handlers_.message;
      if (handler) handler(message);
    } catch (const Error& error) {
      disconnected(error.what());
    }
  }

  void disconnected(const std::string& why) {
    if (is_over_ || !handlers_.message) return;
    asio::post(io_, [channel = std::shared_ptr<Channel>(std::move(channel_))] {});  // this may be a call of its own
    const bool had_joined = std::exchange(has_joined_, false);
    if (!had_round_) kept_open_.reset();
    if (!had_round_ && !(had_joined && time_left() <= 0ms)) return try_later(why);
    lose({"the connection to the endpoint " + text_of(endpoint_) + " is lost: " + why,
          "host " + hello_->host_name + ", job " + hello_->run_id,
          "look at ddprun's output and at the machine there"});
  }

  void refuse(const std::string& why, const std::string& try_this) {
    lose({why, "joining the job at " + text_of(endpoint_) + ", from host " + hello_->host_name, try_this});
  }

  // --- again, until the join deadline ---

  Clock::duration time_left() const { return std::max<Clock::duration>(began_ + join_timeout_ - Clock::now(), 0ms); }

  void try_later(const std::string& why) {
    if (why != last_reason_) {
      last_reason_ = why;
      reason_since_ = Clock::now();
      is_reason_said_ = false;
    }
    if (time_left() <= 0ms) return give_up();
    if (!is_reason_said_ && (Clock::now() - reason_since_ >= kQuietTime)) {
      is_reason_said_ = true;
      handlers_.say("no answer from " + text_of(endpoint_) + " yet: " + why + "; it is tried for another " +
                    rendezvous::describe_duration(std::chrono::duration_cast<milliseconds>(time_left())) + ". This host has " +
                    list_of(own_addresses()));
    }
    timer_.expires_after(std::min<Clock::duration>(pause_, time_left()));
    pause_ = std::min<milliseconds>(pause_ * 3 / 2, kPauseMax);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      if (self->time_left() <= 0ms) return self->give_up();
      self->begin_attempt();
    });
  }

  void wait_for_join_deadline() {
    timer_.expires_after(time_left());
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->has_joined_ && !self->had_round_) self->give_up();
    });
  }

  void give_up() {
    if (last_reason_.empty()) last_reason_ = looking_up_ ? "the name is still being looked up" : "no answer to our hello";
    lose({"no answer from ddprun at " + text_of(endpoint_) + " within " + rendezvous::describe_duration(join_timeout_) +
              " (last: " + last_reason_ + ")",
          "joining job " + hello_->run_id + ", attempt " + std::to_string(attempts_) + ", from host " + hello_->host_name +
              "; the endpoint's addresses: " + list_of(addresses_) + "; this host's: " + list_of(own_addresses()),
          what_to_try()});
  }

  std::string what_to_try() const {
    if (addresses_.empty()) return "`getent hosts " + endpoint_.host + "` on this host, or an address in place of the name";
    if (last_reason_.find("is no ddprun") != std::string::npos)
      return "another port, the same on all nodes; `ss -ltnp` on that host shows who has this one";
    return "start ddprun on the node that has one of the endpoint's addresses, with the same endpoint; a node that is behind "
           "another address (NAT, a service name) serves it with `--rdzv-conf=is_host=true`";
  }

  void lose(const LinkLost& why) {
    const auto lost = handlers_.lost;
    stop_trying();
    if (lost) asio::post(io_, [lost, why] { lost(why); });
  }

  void stop_trying() {
    is_over_ = true;
    handlers_ = {};
    timer_.cancel();
    looking_up_.reset();
    connecting_.reset();
    if (channel_) asio::post(io_, [channel = std::shared_ptr<Channel>(std::move(channel_))] {});
  }

  asio::io_context& io_;
  EndpointName endpoint_;
  milliseconds join_timeout_, heartbeat_timeout_;
  Handlers handlers_;
  std::shared_ptr<const security::Security> security_;
  asio::steady_timer timer_;  // of the attempt, the pause or the join deadline
  const Clock::time_point began_ = Clock::now();
  std::optional<Hello> hello_;
  std::shared_ptr<void> looking_up_;
  std::vector<sockaddr_storage> candidates_;
  std::vector<std::string> addresses_;  // of the endpoint
  std::shared_ptr<asio::posix::stream_descriptor> connecting_;
  std::unique_ptr<Channel> channel_;
  // The same connection: it is closed with this process, or when the agent is done, and not when heartbeats are missed. So
  // its end, which the other side's kernel hears of, proves that this node's workers have ended.
  io::UniqueFd kept_open_;
  milliseconds greeted_at_{0}, clock_offset_{0};
  milliseconds pause_ = kPauseFirst;
  std::string last_reason_;
  Clock::time_point reason_since_;
  int attempts_ = 0;
  bool is_reason_said_ = false, has_joined_ = false, had_round_ = false, is_over_ = false;
};

MembershipClient::MembershipClient(asio::io_context& io, EndpointName endpoint, milliseconds join_timeout,
                                   milliseconds heartbeat_timeout, Handlers handlers,
                                   std::shared_ptr<const security::Security> security)
    : impl_(std::make_shared<Impl>(io, std::move(endpoint), join_timeout, heartbeat_timeout, std::move(handlers),
                                   std::move(security))) {}

MembershipClient::~MembershipClient() { impl_->stop(); }
void MembershipClient::send(const ToMembership& message) { impl_->send(message); }
milliseconds MembershipClient::job_time() const { return impl_->job_time(); }
void MembershipClient::finish(std::function<void()> done) { impl_->finish(std::move(done)); }

}  // namespace ddp::rendezvous
