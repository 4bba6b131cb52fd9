#include "rendezvous/control/reception.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/control/message_json.hpp"
#include "rendezvous/io/socket_owner.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kHelloLimitMin{1'000};
constexpr std::string_view kBearer = "bearer ";  // in any case

std::string_view bearer_of(std::string_view authorization) {
  const auto is_equal = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  if (authorization.size() < kBearer.size() ||
      !std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), is_equal))
    return {};
  return authorization.substr(kBearer.size());
}

io::SocketEnd local_end_of(const io::UniqueFd& socket) {
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length);
  return io::socket_end_of(local);
}

bool is_us_or_root(std::optional<uid_t> owner) { return owner && (*owner == ::geteuid() || *owner == 0); }

}  // namespace

class Reception::Impl : public std::enable_shared_from_this<Reception::Impl> {
 public:
  Impl(asio::io_context& io, Options options, std::function<Direction(const Hello&)> direct, io::Warn warn)
      : io_(io), options_(std::move(options)), direct_(std::move(direct)), warn_(std::move(warn)) {}

  void adopt(io::UniqueFd socket, const sockaddr_storage& peer, bool speaks_tls) {
    const auto address = io::address_of(peer).text();
    if (speaks_tls && !options_.security) {
      security::refuse_tls(socket.get());
      return say_lost(address, "no token here",
                      "it speaks TLS, as those do that have a token, and there is none here (--token-file)");
    }
    if (visitors_.size() >= options_.waiting_max)
      lose(visitors_.begin()->first, "too many without a hello", "too many others came after it");
    const auto number = ++visitors_seen_;
    Channel::Options options;
    options.message_bytes_max = kControlMessageBytesMax;
    options.heartbeat_timeout = options_.heartbeat_timeout;
    options.asks_for_token = options_.security != nullptr;
    if (speaks_tls) options.tls = {options_.security, &options_.security->tls};
    if (options_.http)
      options.http = [weak = weak_from_this(), speaks_tls, from = io::socket_end_of(peer),
                      to = local_end_of(socket)](const Channel::HttpRequest& request) {
        const auto self = weak.lock();
        return self ? self->answer(request, speaks_tls, from, to) : Channel::HttpAnswer{503, "text/plain", ""};
      };
    options.post = [weak = weak_from_this()](std::string_view target) {
      const auto self = weak.lock();
      return self && self->take_farewell(target);
    };
    Channel::Handlers handlers;
    handlers.message = [this, number](std::string_view text) { take(number, text); };
    handlers.closed = [this, number](const Channel::Closed& how) { lose(number, how.reason, how.why); };
    auto channel = std::make_unique<Channel>(io_, std::move(socket), Channel::Side::server, std::move(options),
                                             std::move(handlers));
    auto& visitor =
        visitors_.try_emplace(number, Visitor{address, std::move(channel), asio::steady_timer(io_)}).first->second;
    visitor.hello_limit.expires_after(std::max(kHelloLimitMin, 3 * options_.heartbeat_timeout));
    visitor.hello_limit.async_wait([weak = weak_from_this(), number](error_code error) {
      const auto self = weak.lock();
      if (!error && self && self->visitors_.count(number) != 0)
        self->lose(number, "no hello", self->visitors_.at(number).is_sent_away ? "" : "it said nothing");
    });
  }

  void stop() { visitors_.clear(); }

 private:
  struct Visitor {
    std::string address;
    std::unique_ptr<Channel> channel;
    asio::steady_timer hello_limit;  // a peer that says nothing is not to keep a place
    bool is_sent_away = false;
  };

  Channel::HttpAnswer answer(const Channel::HttpRequest& request, bool speaks_tls, const io::SocketEnd& from,
                             const io::SocketEnd& to) const {
    const auto& security = options_.security;
    const auto& scrape = options_.scrape_token;
    const auto bearer = bearer_of(request.authorization);
    const bool has_token = speaks_tls || (security && security->token.is(bearer)) || (scrape && scrape->is(bearer));
    const bool is_ours = from.address.is_loopback() && is_us_or_root(owners_.owner_of(from, to));
    return options_.http({request.method, request.target, request.host, is_ours, has_token, security || scrape});
  }

  void take(std::uint64_t number, std::string_view text) {
    try {
      const auto message = to_membership_of(text);
      const auto* hello = std::get_if<Hello>(&message);
      if (hello == nullptr) throw Error("malformed message: hello comes first, and once");
      const auto direction = direct_(*hello);
      if (std::holds_alternative<std::monostate>(direction)) return lose(number, "", "");
      if (const auto* elsewhere = std::get_if<Elsewhere>(&direction)) return send_away(number, *elsewhere);
      if (const auto* verdict = std::get_if<FinishJob>(&direction)) return send_away(number, *verdict);
      auto visitor = std::move(visitors_.at(number));
      visitors_.erase(number);
      std::get<std::reference_wrapper<MembershipServer>>(direction).get().take_in(std::move(visitor.channel),
                                                                                  visitor.address, *hello);
    } catch (const Error& error) {
      lose(number, "hello refused", error.what());
    }
  }

  // Its place is kept until the word has gone out, or the limit for its hello is over.
  void send_away(std::uint64_t number, const ToAgent& word) {
    auto& visitor = visitors_.at(number);
    visitor.is_sent_away = true;
    auto& channel = *visitor.channel;
    channel.send(to_json(word));
    channel.finish([weak = weak_from_this(), number] {
      if (const auto self = weak.lock()) self->lose(number, "", "");
    });
  }

  bool take_farewell(std::string_view target) {
    constexpr std::string_view kPath = "/v1/farewell/";
    return options_.farewell && target.substr(0, kPath.size()) == kPath &&
           options_.farewell(std::string(target.substr(kPath.size())));
  }

  // Without a word where there is nothing to say of it.
  void lose(std::uint64_t number, const char* reason, const std::string& why) {
    const auto found = visitors_.find(number);
    if (found == visitors_.end()) return;
    const auto address = found->second.address;
    visitors_.erase(found);
    if (!why.empty()) say_lost(address, reason, why);
  }

  void say_lost(const std::string& address, const char* reason, const std::string& why) {
    warn_({reason, address, "a connection from " + address + " ended before it said which job it belongs to: " + why});
  }

  asio::io_context& io_;
  Options options_;
  std::function<Direction(const Hello&)> direct_;
  io::Warn warn_;
  const io::SocketOwners owners_;
  std::map<std::uint64_t, Visitor> visitors_;
  std::uint64_t visitors_seen_ = 0;
};

Reception::Reception(asio::io_context& io, Options options, std::function<Direction(const Hello&)> direct,
                     io::Warn warn)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(direct), std::move(warn))) {}

Reception::~Reception() { impl_->stop(); }
void Reception::adopt(io::UniqueFd socket, const sockaddr_storage& peer) {
  impl_->adopt(std::move(socket), peer, false);
}
void Reception::adopt_tls(io::UniqueFd socket, const sockaddr_storage& peer) {
  impl_->adopt(std::move(socket), peer, true);
}

}  // namespace ddp::rendezvous
