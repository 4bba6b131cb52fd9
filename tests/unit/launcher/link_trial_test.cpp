#include "launcher/agent/link_trial.hpp"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

// An agent's port that answers one request, or takes the connection and says nothing.
class AgentPort {
 public:
  explicit AgentPort(const std::string& answer) {
    if (answer.empty()) return;
    thread_ = std::thread([this, answer] {
      tcp::socket socket(io_);
      acceptor_.accept(socket);
      asio::streambuf request;
      request_bytes = asio::read_until(socket, request, "\r\n\r\n");
      asio::write(socket, asio::buffer(answer));
    });
  }
  ~AgentPort() {
    if (thread_.joinable()) thread_.join();
  }
  rendezvous::Elsewhere address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }

  std::size_t request_bytes = 0;

 private:
  asio::io_context io_;
  tcp::acceptor acceptor_{io_, {asio::ip::address_v4::loopback(), 0}};
  std::thread thread_;
};

bool do_work(std::vector<rendezvous::Elsewhere> to, std::chrono::milliseconds limit) {
  asio::io_context io;
  int answers = 0;
  bool out = false;
  const LinkTrial trial(io, std::move(to), limit, [&](bool do_work) {
    out = do_work;
    ++answers;
  });
  io.run();
  EXPECT_EQ(answers, 1);
  return out;
}

TEST(LinkTrial, SucceedsIfAllAgentsAnswer) {
  AgentPort one("HTTP/1.1 200 OK\r\n\r\n"), other("HTTP/1.1 200 OK\r\n\r\n");
  EXPECT_TRUE(do_work({one.address(), other.address()}, 60s));
  for (const auto* port : {&one, &other}) EXPECT_EQ(port->request_bytes, 1024U);
}

TEST(LinkTrial, FailsIfOneIsSilentRefusesOrSpeaksAnotherProtocol) {
  const AgentPort silent("");
  EXPECT_FALSE(do_work({silent.address()}, 1ms));
  EXPECT_FALSE(do_work({{"127.0.0.1", 1}}, 60s));
  EXPECT_FALSE(do_work({{"no address", 29501}}, 60s));
  AgentPort stranger("SSH-2.0-OpenSSH\r\n");
  EXPECT_FALSE(do_work({stranger.address()}, 60s));
}

}  // namespace
}  // namespace ddp::launcher
