// What somebody who listens between a node and its endpoint reads of a guardian's farewell. The farewell has the node
// key, by which others could speak for the node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/security/nodes_with_tokens.hpp"

namespace ddp::test::token {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Passes on the bytes of each connection to a port of this host, and keeps what the clients said. It does not pass on
// the end of a client, so the endpoint learns of that by words alone.
class Listener {
 public:
  explicit Listener(long to) : to_(static_cast<std::uint16_t>(to)) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.get(), 16) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("no port to listen on");
    port = ntohs(address.sin_port);
    thread_ = std::thread([this] { pass_on(); });
  }
  ~Listener() {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  int connections() const { return connections_; }
  std::string heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

  long port = 0;

 private:
  struct Pair {
    base::UniqueFd client, endpoint;
  };

  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    out.sin_port = htons(port);
    return out;
  }

  void pass_on() {
    while (true) {
      std::vector<pollfd> waits{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const auto& pair : pairs_) {
        waits.push_back({pair.client ? pair.client.get() : -1, POLLIN, 0});
        waits.push_back({pair.endpoint ? pair.endpoint.get() : -1, POLLIN, 0});
      }
      ::poll(waits.data(), waits.size(), -1);
      if (waits[0].revents != 0) return;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        if (waits[2 + 2 * i].revents != 0) carry(pairs_[i].client, pairs_[i].endpoint, true);
        if (waits[3 + 2 * i].revents != 0 && pairs_[i].endpoint) carry(pairs_[i].endpoint, pairs_[i].client, false);
      }
      if (waits[1].revents != 0) accept();
    }
  }

  void accept() {
    base::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    base::UniqueFd endpoint(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = loopback(to_);
    if (::connect(endpoint.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    pairs_.push_back({std::move(client), std::move(endpoint)});
    ++connections_;
  }

  void carry(base::UniqueFd& from, base::UniqueFd& to, bool is_of_client) {
    char bytes[65'536];
    const auto count = ::recv(from.get(), bytes, sizeof bytes, 0);
    if (count <= 0) {
      from.reset();
      if (!is_of_client) to.reset();
      return;
    }
    if (to) (void)!::send(to.get(), bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL);
    const std::lock_guard lock(mutex_);
    if (is_of_client) heard_.append(bytes, static_cast<std::size_t>(count));
  }

  const std::uint16_t to_;
  const base::UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, stop_{::eventfd(0, EFD_CLOEXEC)};
  std::deque<Pair> pairs_;
  mutable std::mutex mutex_;
  std::string heard_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

class TokenFarewell : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Plain, TokenFarewell, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, TokenFarewell, ::testing::Values(true));

TEST_P(TokenFarewell, TellsOfTheNodesEndAndUnderTlsNothingElse) {
  const auto token = GetParam() ? kToken : "";
  Job daemon({"--port=0", "--host=127.0.0.1", "--heartbeat-timeout=3600"}, with_token(token, "ddp-rendezvous"));
  const auto port = daemon.number_after("membership listens on port ");
  ASSERT_GT(port, 0) << daemon.err();
  Listener listener(port);
  const std::vector<std::string> patience{"--rdzv-conf=heartbeat_timeout=3600"};
  Job left(node_at(port, "echo up; " + kStay, 2, patience), with_token(token));
  Job killed(node_at(listener.port, "echo up; " + kStay, 2, patience), with_token(token));
  ASSERT_TRUE(left.prints("up\n")) << left.err();
  ASSERT_TRUE(killed.prints("up\n")) << killed.err();
  const int connections = listener.connections();
  killed.kill(SIGKILL);
  EXPECT_EQ(left.wait(), 128 + SIGKILL) << left.err();
  EXPECT_EQ(listener.connections(), connections + 1);
  if (token.empty())
    EXPECT_THAT(listener.heard(), HasSubstr("POST /v1/farewell/"));
  else
    EXPECT_THAT(listener.heard(), Not(HasSubstr("farewell")));
}

}  // namespace
}  // namespace ddp::test::token
