// The first bytes of a connection to the endpoint: the store's, HTTP, a WebSocket with a hello, TLS, or anything.
//
// The real port and reception listen on 127.0.0.1. The input: one byte whose lowest bit gives the endpoint a token;
// then segments, each a byte with a length and that many bytes, which the endpoint reads before the next one comes. The
// endpoint answers in one of its protocols or not at all, and keeps nothing of a connection. Without the token nobody
// joins, takes leave or sees the jobs.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/control/reception.hpp"
#include "rendezvous/port/port.hpp"
#include "tests/fuzz/loopback.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

using namespace ddp::rendezvous;
using ddp::fuzz::require;
using ddp::fuzz::take_text;
namespace base = ddp::base;

constexpr const char* kToken = "a-token-of-the-fuzzer";

// The number that the next descriptor gets, which grows if one is left open.
int next_descriptor() { return base::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(); }

class FuzzedEndpoint {
 public:
  void run(std::string_view input) {
    const int descriptor_before = next_descriptor();
    has_token_ = (ddp::fuzz::take_byte(input) & 1) != 0;
    said_.clear();
    begin();
    {
      const auto client = ddp::fuzz::connect_to_loopback(port_.number());
      work();
      while (!input.empty()) {
        const auto segment = take_text(input);
        said_ += segment;
        ddp::fuzz::send_to_loopback(client, segment);
        work();
      }
      ::shutdown(client.get(), SHUT_WR);
      work();
      check_answer(client);
    }
    work();
    reception_.reset();
    port_.drop_pending();
    work();
    require(next_descriptor() == descriptor_before, "nothing is kept of a connection that has ended");
  }

 private:
  using Milliseconds = std::chrono::milliseconds;

  void begin() {
    Reception::Options options;
    options.heartbeat_timeout = Milliseconds(60'000);  // longer than any input takes
    if (has_token_) options.security = security_;
    options.http = [this](const HttpQuestion& question) {
      require(question.takes_tokens == has_token_, "a request is told whether there is a token");
      require(!question.has_token || (has_token_ && said_.find(kToken) != std::string::npos),
              "who has not said the token has none");
      return answer_operator(question, [] { return JobViews(); }, {});
    };
    options.farewell = [this](const NodeEnded&) {
      require(!has_token_, "nobody says farewell for a node without the token");
      return false;
    };
    const auto direct = [this](const Hello& hello, const ddp::base::Address&) -> Reception::Direction {
      require(!has_token_, "nobody joins without the token");
      require(!hello.run_id.empty() && said_.find("/v1/agents") != std::string::npos, "who joins has said for what");
      if (hello.run_id == "elsewhere") return Elsewhere{"127.0.0.1", 1};
      if (hello.run_id == "over") return FinishJob{};
      return {};
    };
    reception_.emplace(io_, std::move(options), direct, [](const base::Warning&) {});
  }

  void work() {
    io_.restart();
    while (io_.poll() != 0) {
    }
  }

  static void check_answer(const base::UniqueFd& client) {
    std::array<char, 4096> buffer;
    const auto count = ::recv(client.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) return;
    const std::string_view answer(buffer.data(), static_cast<std::size_t>(count));
    constexpr std::array kStatuses{"101", "200", "400", "401", "403", "404", "405", "426"};
    const auto has_status = [&](const char* status) { return answer.substr(9, 3) == status; };
    const bool is_http = answer.starts_with("HTTP/1.1 ") && std::any_of(kStatuses.begin(), kStatuses.end(), has_status);
    const bool is_tls = answer.starts_with("\x15\x03") || answer.starts_with("\x16\x03");
    require(is_http || is_tls, "an answer is one of HTTP or of TLS");
  }

  boost::asio::io_context io_;
  std::shared_ptr<ddp::security::Security> security_ =
      std::make_shared<ddp::security::Security>(ddp::security::Token(kToken));
  bool has_token_ = false;
  std::string said_;
  std::optional<Reception> reception_;
  ddp::port::Port port_{
      io_,
      {.addresses = {"127.0.0.1"}, .first_byte_limit = Milliseconds(60'000)},
      {.store = [this](base::UniqueFd, const sockaddr_storage&) { require(said_[0] == 0, "0 is the store's"); },
       .http =
           [this](base::UniqueFd socket, const sockaddr_storage& peer) {
             require(std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz").find(said_[0]) !=
                         std::string_view::npos,
                     "HTTP begins with a letter");
             reception_->adopt(std::move(socket), peer);
           },
       .tls =
           [this](base::UniqueFd socket, const sockaddr_storage& peer) {
             require(said_[0] == 0x16, "TLS begins with a handshake");
             reception_->adopt_tls(std::move(socket), peer);
           }}};
};

}  // namespace

void ddp::fuzz::first_bytes(std::string_view input) {
  static FuzzedEndpoint endpoint;
  endpoint.run(input);
}
