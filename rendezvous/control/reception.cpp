#include "rendezvous/control/reception.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <system_error>
#include <utility>

#include "base/socket_owner.hpp"
#include "ddp/error.hpp"
#include "rendezvous/host/host_words.hpp"
#include "rendezvous/wire/message_json.hpp"

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

// 0: none, or not one that this program knows.
int signal_of(std::string_view number) {
  int out = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  return is_number && out >= 1 && out <= kSignalMax ? out : 0;
}

base::SocketEnd local_end_of(int socket) {
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&local), &length);
  return base::socket_end_of(local);
}

bool is_us_or_root(std::optional<uid_t> owner) { return owner && (*owner == ::geteuid() || *owner == 0); }

}  // namespace

class Reception::Impl : public std::enable_shared_from_this<Reception::Impl> {
 public:
  Impl(asio::io_context& io, Options options, Direct direct, base::Warn warn)
      : io_(io),
        options_(std::move(options)),
        direct_(std::move(direct)),
        warn_(std::move(warn)),
        pace_(options_.pace) {}

  void adopt(base::UniqueFd socket, const sockaddr_storage& peer, bool speaks_tls) {
    const auto from = base::socket_end_of(peer);
    if (speaks_tls && !options_.security) {
      security::refuse_tls(socket.get());
      return say_lost(from.address, "no token here",
                      "it speaks TLS, as those do that have a token, and there is none here (--token-file)");
    }
    const auto now = Clock::now();
    const auto start = speaks_tls ? pace_.begin(from.address, now) : now;
    if (!start)
      return say_lost(from.address, "too many failed handshakes", "too many handshakes from there have just failed");
    if (visitors_.size() >= options_.waiting_max)
      lose(visitors_.begin()->first, "too many without a hello", "too many others came after it");
    const auto number = ++visitors_seen_;
    auto& visitor = visitors_.try_emplace(number, io_, from, speaks_tls).first->second;
    if (*start == now) return open(number, std::move(socket));
    visitor.timer.expires_at(*start);
    visitor.timer.async_wait([weak = weak_from_this(), number, held = std::move(socket)](error_code error) mutable {
      const auto self = weak.lock();
      if (!error && self && self->visitors_.count(number) != 0) self->open(number, std::move(held));
    });
  }

  void stop() { visitors_.clear(); }

 private:
  using Clock = std::chrono::steady_clock;

  // A connection, for as long as it is there; a live session once it has been handed over.
  struct Presence {
    Presence(std::weak_ptr<Impl> reception, const base::Address& address)
        : reception_(std::move(reception)), source(address) {}
    ~Presence() {
      const auto reception = reception_.lock();
      if (is_session && reception) reception->pace_.left(source);
    }
    Presence(const Presence&) = delete;

    std::weak_ptr<Impl> reception_;
    const base::Address source;
    bool is_session = false;
  };

  struct Visitor {
    Visitor(asio::io_context& io, const base::SocketEnd& peer, bool is_tls)
        : from(peer), speaks_tls(is_tls), timer(io) {}

    const base::SocketEnd from;
    const bool speaks_tls;
    std::shared_ptr<Presence> presence{};
    std::unique_ptr<Channel> channel{};  // none while its handshake is delayed
    asio::steady_timer timer;            // of that delay; then of its hello, as who says nothing is not to keep a place
    bool is_sent_away = false;
  };

  void open(std::uint64_t number, base::UniqueFd socket) {
    auto& visitor = visitors_.at(number);
    Channel::Options options;
    options.message_bytes_max = kControlMessageBytesMax;
    options.heartbeat_timeout = options_.heartbeat_timeout;
    options.asks_for_token = options_.security != nullptr;
    if (visitor.speaks_tls) options.tls = {options_.security, &options_.security->tls};
    if (options_.http)
      options.http = [weak = weak_from_this(), speaks_tls = visitor.speaks_tls, from = visitor.from,
                      number_of_socket = socket.get()](const Channel::HttpRequest& request) {
        const auto self = weak.lock();
        if (!self) return Channel::HttpAnswer{503, "text/plain", ""};
        return self->answer(request, speaks_tls, from, local_end_of(number_of_socket));
      };
    options.post = [weak = weak_from_this()](const Channel::HttpRequest& request) {
      const auto self = weak.lock();
      return self && self->take_farewell(request);
    };
    Channel::Handlers handlers;
    handlers.message = [this, number](std::string_view text) { take(number, text); };
    handlers.closed = [this, number](const Channel::Closed& how) { end(number, how); };
    visitor.presence = std::make_shared<Presence>(weak_from_this(), visitor.from.address);
    options.while_open = visitor.presence;
    visitor.channel = std::make_unique<Channel>(io_, std::move(socket), Channel::Side::server, std::move(options),
                                                std::move(handlers));
    visitor.timer.expires_after(std::max(kHelloLimitMin, 3 * options_.heartbeat_timeout));
    visitor.timer.async_wait([weak = weak_from_this(), number](error_code error) {
      const auto self = weak.lock();
      if (!error && self && self->visitors_.count(number) != 0)
        self->visitors_.at(number).is_sent_away ? self->forget(number)
                                                : self->lose(number, "no hello", "it said nothing");
    });
  }

  Channel::HttpAnswer answer(const Channel::HttpRequest& request, bool speaks_tls, const base::SocketEnd& from,
                             const base::SocketEnd& to) const {
    const auto& security = options_.security;
    const auto& scrape = options_.scrape_tokens;
    const auto bearer = bearer_of(request.authorization);
    const bool has_token = speaks_tls || (security && security->tokens.has(bearer)) || (scrape && scrape->has(bearer));
    const bool is_ours = from.address.is_loopback() && is_us_or_root(owners_.owner_of(from, to));
    return options_.http({request.method, request.target, request.host, is_ours, has_token, security || scrape});
  }

  void take(std::uint64_t number, std::string_view text) {
    try {
      auto message = to_membership_of(text);
      auto* hello = message ? std::get_if<Hello>(&*message) : nullptr;
      if (hello == nullptr) throw Error(kHelloOutOfPlace);
      const auto source = visitors_.at(number).from.address;
      const auto direction = direct_(*hello, source);
      if (std::holds_alternative<std::monostate>(direction)) return forget(number);
      if (const auto* elsewhere = std::get_if<Elsewhere>(&direction)) return send_away(number, *elsewhere);
      if (const auto* verdict = std::get_if<FinishJob>(&direction)) return send_away(number, *verdict);
      if (const auto* refused = std::get_if<Refused>(&direction)) {
        warn_({"too many jobs", source.text(), "a node at " + source.text() + " was refused: " + refused->what,
               base::LogFields().add("job", hello->run_id).add("node", hello->host_name)});
        return send_away(number, *refused);
      }
      auto& visitor = visitors_.at(number);
      visitor.presence->is_session = true;
      pace_.joined(visitor.from.address);
      auto channel = std::move(visitor.channel);
      const auto address = visitor.from.address.text();
      visitors_.erase(number);
      std::get<std::reference_wrapper<MembershipServer>>(direction).get().take_in(std::move(channel), address,
                                                                                  std::move(*hello));
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
      if (const auto self = weak.lock()) self->forget(number);
    });
  }

  bool take_farewell(const Channel::HttpRequest& request) {
    constexpr std::string_view kPath = "/v1/farewell/";
    if (!options_.farewell || request.target.substr(0, kPath.size()) != kPath) return false;
    return options_.farewell({std::string(request.target.substr(kPath.size())), signal_of(request.killed_by)});
  }

  // By the peer, or by what it sent.
  void end(std::uint64_t number, const Channel::Closed& how) {
    if (how.is_answered) return forget(number);
    const auto& visitor = visitors_.at(number);
    if (visitor.speaks_tls) pace_.failed(visitor.from.address, Clock::now());
    lose(number, how.reason, how.why);
  }

  void forget(std::uint64_t number) { visitors_.erase(number); }

  void lose(std::uint64_t number, const char* reason, const std::string& why) {
    const auto found = visitors_.find(number);
    if (found == visitors_.end()) return;
    const auto source = found->second.from.address;
    visitors_.erase(found);
    say_lost(source, reason, why);
  }

  void say_lost(const base::Address& source, const char* reason, const std::string& why) {
    const auto address = source.text();
    warn_({reason, address, "a connection from " + address + " ended before it said which job it belongs to: " + why});
  }

  asio::io_context& io_;
  Options options_;
  Direct direct_;
  base::Warn warn_;
  HandshakePace pace_;
  const base::SocketOwners owners_;
  std::map<std::uint64_t, Visitor> visitors_;
  std::uint64_t visitors_seen_ = 0;
};

Reception::Reception(asio::io_context& io, Options options, Direct direct, base::Warn warn)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(direct), std::move(warn))) {}

Reception::~Reception() { impl_->stop(); }
void Reception::adopt(base::UniqueFd socket, const sockaddr_storage& peer) {
  impl_->adopt(std::move(socket), peer, false);
}
void Reception::adopt_tls(base::UniqueFd socket, const sockaddr_storage& peer) {
  impl_->adopt(std::move(socket), peer, true);
}

}  // namespace ddp::rendezvous
