#include "launcher/agent/link_trial.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "base/host_and_port.hpp"

namespace ddp::launcher {

namespace asio = boost::asio;
using asio::ip::tcp;

struct LinkTrial::State {
  std::function<void(bool do_work)> done;  // empty: it was told, or nobody wants it
  std::size_t left = 0;

  void tell(bool works) {
    if (!done || (works && --left > 0)) return;
    std::exchange(done, nullptr)(works);
  }
};

namespace {

constexpr std::size_t kRequestBytes = 1024;
constexpr std::string_view kAnswer = "HTTP/1.1 ";
constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

std::string request_to(const rendezvous::Elsewhere& to) {
  auto text = "GET /healthz HTTP/1.1\r\nHost: " + base::host_and_port(to.address, to.port) + "\r\nX-Padding: ";
  text.resize(std::max(text.size(), kRequestBytes - 4), 'x');
  return text + "\r\n\r\n";
}

asio::awaitable<bool> is_answered(rendezvous::Elsewhere to) {
  boost::system::error_code no_address;
  const tcp::endpoint peer(asio::ip::make_address(to.address, no_address), to.port);
  tcp::socket socket(co_await asio::this_coro::executor);
  if (no_address || std::get<0>(co_await socket.async_connect(peer, kNoThrow))) co_return false;
  const auto request = request_to(to);
  if (std::get<0>(co_await asio::async_write(socket, asio::buffer(request), kNoThrow))) co_return false;
  std::array<char, kAnswer.size()> answer{};
  if (std::get<0>(co_await asio::async_read(socket, asio::buffer(answer), kNoThrow))) co_return false;
  co_return std::string_view(answer.data(), answer.size()) == kAnswer;
}

asio::awaitable<bool> is_answered_within(rendezvous::Elsewhere to, std::chrono::milliseconds limit) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer timer(co_await asio::this_coro::executor, limit);
  const auto first = co_await (is_answered(std::move(to)) || timer.async_wait(kNoThrow));
  co_return first.index() == 0 && std::get<0>(first);
}

}  // namespace

LinkTrial::LinkTrial(asio::io_context& io, std::vector<rendezvous::Elsewhere> to, std::chrono::milliseconds limit,
                     std::function<void(bool do_work)> done)
    : state_(std::make_shared<State>(State{std::move(done), to.size()})) {
  for (auto& each : to)
    asio::co_spawn(io, is_answered_within(std::move(each), limit),
                   [state = state_](const std::exception_ptr& error, bool works) { state->tell(!error && works); });
}

LinkTrial::~LinkTrial() { state_->done = nullptr; }

}  // namespace ddp::launcher
