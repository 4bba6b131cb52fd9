// An attacker between a node and its endpoint answers in the endpoint's place that there is no token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/security/nodes_with_tokens.hpp"

namespace ddp::test::token {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A port of this host, and what answers there with alerts of TLS in the clear.
class Forger {
 public:
  Forger() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const int yes = 1;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.get(), 16) != 0)
      throw std::runtime_error("no port to listen on");
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  // To one connection. False at the deadline.
  bool answer(unsigned char alert) const {
    const base::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<char, 4096> hello;
    if (!client || ::recv(client.get(), hello.data(), hello.size(), 0) <= 0) return false;
    const std::array<unsigned char, 7> record{21, 3, 3, 0, 2, 2, alert};
    return ::send(client.get(), record.data(), record.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(record.size());
  }

  void stop() const { ::shutdown(listener_.get(), SHUT_RDWR); }  // no connection comes any more

  const long port = std::stol(free_port());  // which a daemon may get afterwards

 private:
  const base::UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

constexpr unsigned char kAccessDenied = 49, kIllegalParameter = 47;  // no token there; another token there

TEST(TokenAlert, ForgedAlertsDoNotKeepANodeFromItsEndpoint) {
  for (const auto alert : {kAccessDenied, kIllegalParameter}) {
    SCOPED_TRACE(static_cast<int>(alert));
    auto forger = std::make_unique<Forger>();
    const auto port = forger->port;
    // Who may serve the endpoint itself may take the port before the daemon does.
    Job one(node_at(port, "echo done", 2, {"--rdzv-conf=is_host=0"}), with_token(kToken));
    ASSERT_TRUE(forger->answer(alert) && forger->answer(alert)) << one.err();
    EXPECT_TRUE(one.prints("which anybody on the way could say; it is tried again for 10 s")) << one.err();
    forger.reset();
    const Daemon daemon(with_token(kToken, "ddp-rendezvous"), port);
    ASSERT_EQ(daemon.port, port) << daemon.program.err();
    Job two(node_at(port, "echo done"), with_token(kToken));
    EXPECT_EQ(one.wait(), 0) << one.err();
    EXPECT_EQ(two.wait(), 0) << two.err();
    EXPECT_THAT(one.err(), Not(HasSubstr("error:")));
  }
}

TEST(TokenAlert, AlertsThatGoOnEndTheNodeWithTheirReason) {
  const Forger forger;
  Job node(node_at(forger.port, "echo never", 2, {"--rdzv-conf=join_timeout=6"}), with_token(kToken));
  std::thread attack([&] {
    while (forger.answer(kAccessDenied)) {
    }
  });
  EXPECT_EQ(node.wait(), 77);
  forger.stop();
  attack.join();
  EXPECT_THAT(node.err(), HasSubstr("error: this node has a token and the endpoint has none"));
}

}  // namespace
}  // namespace ddp::test::token
