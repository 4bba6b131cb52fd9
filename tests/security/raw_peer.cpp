#include "tests/security/raw_peer.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/unique_fd.hpp"
#include "rendezvous/wire/channel.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {

namespace asio = boost::asio;
using asio::ip::tcp;
using rendezvous::Channel;

class RawPeer::Impl {
 public:
  explicit Impl(std::uint16_t port) {
    base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("nobody listens on port " + std::to_string(port));
    talk(std::move(socket), Channel::Side::client);
    start();
  }

  Impl() : acceptor_(std::in_place, io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    port_ = acceptor_->local_endpoint().port();
    take_next();
    start();
  }

  ~Impl() {
    io_.stop();
    thread_.join();
    channel_.reset();
  }

  std::uint16_t port() const { return port_; }

  void say(std::string json) {
    asio::post(io_, [this, json = std::move(json)] {
      if (channel_) channel_->send(json);
    });
  }

  std::optional<std::string> hear(const std::string& type) {
    const auto mark = "\"type\":\"" + type + "\"";
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      while (!heard_.empty()) {
        const auto text = std::move(heard_.front());
        heard_.pop_front();
        if (text.find(mark) != std::string::npos) return text;
      }
      if (is_ended_ || changed_.wait_until(lock, deadline) == std::cv_status::timeout) return {};
    }
  }

  bool is_cut_off() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return is_ended_; });
  }

 private:
  void start() {
    thread_ = std::thread([this] { io_.run(); });
  }

  void take_next() {
    acceptor_->async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (error) return;
      talk(base::UniqueFd(socket.release()), Channel::Side::server);
      take_next();
    });
  }

  void talk(base::UniqueFd socket, Channel::Side side) {
    Channel::Options options;
    options.message_bytes_max = 4u << 20;
    options.heartbeat_timeout = options.handshake_timeout = kPatience;
    {
      const std::lock_guard lock(mutex_);
      heard_.clear();  // of the agent before
    }
    Channel::Handlers handlers;
    handlers.message = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      heard_.emplace_back(text);
      changed_.notify_all();
    };
    handlers.closed = [this](const Channel::Closed&) {
      const std::lock_guard lock(mutex_);
      is_ended_ = !acceptor_;  // another agent may come to an endpoint
      changed_.notify_all();
    };
    channel_ = std::make_unique<Channel>(io_, std::move(socket), side, std::move(options), std::move(handlers));
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::optional<tcp::acceptor> acceptor_;
  std::uint16_t port_ = 0;
  std::unique_ptr<Channel> channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> heard_;  // guarded by mutex_, as is the next
  bool is_ended_ = false;          // an agent's connection
  std::thread thread_;
};

RawPeer::RawPeer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RawPeer::RawPeer(RawPeer&&) noexcept = default;
RawPeer::~RawPeer() = default;
RawPeer RawPeer::agent(std::uint16_t port) { return RawPeer(std::make_unique<Impl>(port)); }
RawPeer RawPeer::endpoint() { return RawPeer(std::make_unique<Impl>()); }
std::uint16_t RawPeer::port() const { return impl_->port(); }
void RawPeer::say(const std::string& json) { impl_->say(json); }
std::optional<std::string> RawPeer::hear(const std::string& type) { return impl_->hear(type); }
bool RawPeer::is_cut_off() { return impl_->is_cut_off(); }

}  // namespace ddp::test
