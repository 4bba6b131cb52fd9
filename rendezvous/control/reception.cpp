#include "rendezvous/control/reception.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/control/message_json.hpp"
#include "rendezvous/io/address.hpp"
#include "rendezvous/io/warn_once.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kHelloLimitMin{1'000};

}  // namespace

class Reception::Impl : public std::enable_shared_from_this<Reception::Impl> {
 public:
  Impl(asio::io_context& io, Options options, std::function<Direction(const Hello&)> direct,
       std::function<void(const std::string&)> say)
      : io_(io), options_(std::move(options)), direct_(std::move(direct)), warn_(std::move(say)) {}

  void adopt(io::UniqueFd socket, const sockaddr_storage& peer) {
    const auto address = io::address_of(peer).text();
    if (visitors_.size() >= options_.waiting_max) lose(visitors_.begin()->first, "too many others came after it");
    const auto number = ++visitors_seen_;
    Channel::Options options;
    options.message_bytes_max = kControlMessageBytesMax;
    options.heartbeat_timeout = options_.heartbeat_timeout;
    if (options_.http)
      options.http = [http = options_.http, is_local = io::address_of(peer).is_loopback()](
                         std::string_view target, std::string_view host) { return http({target, host, is_local}); };
    options.post = [weak = weak_from_this()](std::string_view target) {
      const auto self = weak.lock();
      return self && self->take_farewell(target);
    };
    Channel::Handlers handlers;
    handlers.message = [this, number](std::string_view text) { take(number, text); };
    handlers.closed = [this, number](const Channel::Closed& how) { lose(number, how.why); };
    auto channel = std::make_unique<Channel>(io_, std::move(socket), Channel::Side::server, std::move(options),
                                             std::move(handlers));
    auto& visitor = visitors_.try_emplace(number, Visitor{address, std::move(channel), asio::steady_timer(io_)}).first->second;
    visitor.hello_limit.expires_after(std::max(kHelloLimitMin, 3 * options_.heartbeat_timeout));
    visitor.hello_limit.async_wait([weak = weak_from_this(), number](error_code error) {
      const auto self = weak.lock();
      if (!error && self && self->visitors_.count(number) != 0) self->lose(number, "it said nothing");
    });
  }

  void stop() { visitors_.clear(); }

 private:
  struct Visitor {
    std::string address;
    std::unique_ptr<Channel> channel;
    asio::steady_timer hello_limit;  // a peer that says nothing is not to keep a place
  };

  void take(std::uint64_t number, std::string_view text) {
    try {
      const auto message = to_membership_of(text);
      const auto* hello = std::get_if<Hello>(&message);
      if (hello == nullptr) throw Error("malformed message: hello comes first, and once");
      const auto direction = direct_(*hello);
      if (std::holds_alternative<std::monostate>(direction)) return lose(number, "");
      if (const auto* elsewhere = std::get_if<Elsewhere>(&direction)) return send_away(number, *elsewhere);
      auto visitor = std::move(visitors_.at(number));
      visitors_.erase(number);
      std::get<std::reference_wrapper<MembershipServer>>(direction).get().take_in(std::move(visitor.channel), visitor.address,
                                                                                 *hello);
    } catch (const Error& error) {
      lose(number, error.what());
    }
  }

  // Its place is kept until the word has gone out, or the limit for its hello is over.
  void send_away(std::uint64_t number, const Elsewhere& where) {
    auto& channel = *visitors_.at(number).channel;
    channel.send(to_json(ToAgent(where)));
    channel.finish([weak = weak_from_this(), number] {
      if (const auto self = weak.lock()) self->lose(number, "");
    });
  }

  bool take_farewell(std::string_view target) {
    constexpr std::string_view kPath = "/v1/farewell/";
    return options_.farewell && target.substr(0, kPath.size()) == kPath &&
           options_.farewell(std::string(target.substr(kPath.size())));
  }

  void lose(std::uint64_t number, const std::string& why) {
    const auto found = visitors_.find(number);
    if (found == visitors_.end()) return;
    const auto address = found->second.address;
    asio::post(io_, [channel = std::shared_ptr<Channel>(std::move(found->second.channel))] {});  // it may call this
    visitors_.erase(found);
    if (!why.empty()) warn_("a connection from " + address + " ended before it said which job it belongs to: " + why);
  }

  asio::io_context& io_;
  Options options_;
  std::function<Direction(const Hello&)> direct_;
  io::WarnOnce warn_;  // of strangers, who may come as often as they like
  std::map<std::uint64_t, Visitor> visitors_;
  std::uint64_t visitors_seen_ = 0;
};

Reception::Reception(asio::io_context& io, Options options, std::function<Direction(const Hello&)> direct,
                     std::function<void(const std::string&)> say)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(direct), std::move(say))) {}

Reception::~Reception() { impl_->stop(); }
void Reception::adopt(io::UniqueFd socket, const sockaddr_storage& peer) { impl_->adopt(std::move(socket), peer); }

}  // namespace ddp::rendezvous
