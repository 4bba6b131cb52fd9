#include "worker_runtime/core/sockets/tcp_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/soon.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::core {
namespace {

using Clock = std::chrono::steady_clock;

using test::soon;

RankHello hello_with(const std::string& secret, const std::string& group) {
  RankHello hello;
  hello.purpose = RankHello::Purpose::data;
  hello.rank = 7;
  put_text(hello.secret, secret);
  put_text(hello.group, group);
  return hello;
}

class RankListener : public ::testing::Test {
 protected:
  RankListener() {
    // Stands for the connection to the store: a socket with a loopback address.
    store_.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    loopback.sin_port = htons(9);
    EXPECT_EQ(::connect(store_.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback), 0);
    network_ = with_addresses_of(store_.get(), {});
    auto listener = listen_tcp(network_);
    EXPECT_EQ(listener.endpoint.address, "") << "a rank on the host of the store is reached where the store is";
    endpoint_ = {network_.store_address, listener.endpoint.port};
    acceptor_.emplace(std::move(listener.socket), hello_with("secret", "ddp/round_1/"));
  }

  TcpSocket connect(const RankHello& hello) {
    auto deadline = soon();
    return connect_tcp(endpoint_, hello, deadline);
  }

  // Serves until a connection is accepted, or `refused` is closed.
  std::vector<Acceptor::Arrival> serve(const TcpSocket* refused = nullptr) {
    const auto deadline = soon();
    while (true) {
      std::vector<pollfd> polled;
      acceptor_->add_to(polled);
      const std::size_t of_acceptor = polled.size();
      if (refused != nullptr) polled.push_back({refused->get(), POLLIN, 0});
      poll_until(polled, deadline);
      if (refused != nullptr && polled.back().revents != 0) return {};
      auto arrivals = acceptor_->take(std::span(polled).first(of_acceptor));
      if (!arrivals.empty()) return arrivals;
      if (Clock::now() > deadline.end()) throw std::runtime_error("no connection came");
    }
  }

  base::UniqueFd store_;
  NetworkOptions network_;
  Endpoint endpoint_;
  std::optional<Acceptor> acceptor_;
};

bool is_closed(const TcpSocket& socket) {
  auto deadline = soon();
  std::byte byte{};
  try {
    return receive_all(socket.get(), {&byte, 1}, deadline) && false;
  } catch (const ConnectionLost&) {
    return true;
  }
}

TEST_F(RankListener, AcceptsAConnectionWithTheSecretOfTheRound) {
  const auto follower = connect(hello_with("secret", "ddp/round_1/"));
  const auto arrivals = serve();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].hello.rank, 7);
  EXPECT_EQ(arrivals[0].hello.purpose, RankHello::Purpose::data);
}

TEST_F(RankListener, ClosesOtherConnectionsWithoutAnAnswer) {
  RankHello foreign = hello_with("secret", "ddp/round_1/");
  foreign.magic ^= 1;
  for (const auto& hello : {hello_with("guess", "ddp/round_1/"), hello_with("", "ddp/round_1/"),
                            hello_with("secret", "ddp/round_2/"), foreign}) {
    const auto follower = connect(hello);
    EXPECT_TRUE(serve(&follower).empty());
    EXPECT_TRUE(is_closed(follower));
  }
}

TEST_F(RankListener, AcceptsWhileSilentConnectionsAreOpen) {
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {  // more than it listens to at a time
    base::UniqueFd silent_one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(endpoint_.port);
    ASSERT_EQ(::connect(silent_one.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    silent.push_back(std::move(silent_one));
  }
  const auto follower = connect(hello_with("secret", "ddp/round_1/"));
  EXPECT_EQ(serve().size(), 1u);
}

TEST_F(RankListener, AcceptsAllConnectionsOfOneBurst) {
  std::vector<TcpSocket> followers;
  for (int i = 0; i < 300; ++i) followers.push_back(connect(hello_with("secret", "ddp/round_1/")));
  std::size_t count = 0;
  while (count < followers.size()) count += serve().size();  // throws where nobody comes any more
  EXPECT_EQ(count, followers.size());
}

TEST_F(RankListener, AForkedChildDoesNotKeepAConnectionOpen) {
  auto follower = connect(hello_with("secret", "ddp/round_1/"));
  const auto arrivals = serve();
  int end[2];
  ASSERT_EQ(::pipe(end), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(end[1]);
    ::_exit(::read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  follower.reset();
  EXPECT_TRUE(is_closed(arrivals.at(0).socket));
  ::close(end[1]);
  ::close(end[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

int option(const TcpSocket& socket, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &bytes), 0);
  return value;
}

TEST_F(RankListener, OnlyAPeerThatAlwaysReadsIsExpectedToMakeProgress) {
  const auto follower = connect(hello_with("secret", "ddp/round_1/"));
  expect_signs_of_life(follower.get(), std::chrono::seconds(30));
  EXPECT_EQ(option(follower, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(follower, IPPROTO_TCP, TCP_KEEPIDLE) +
                option(follower, IPPROTO_TCP, TCP_KEEPINTVL) * option(follower, IPPROTO_TCP, TCP_KEEPCNT),
            35);
  EXPECT_EQ(option(follower, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  expect_progress(follower.get(), std::chrono::seconds(30));
  EXPECT_EQ(option(follower, IPPROTO_TCP, TCP_USER_TIMEOUT), 30'000);
}

TEST_F(RankListener, ATakenRangeOfPortsAndAnUnknownInterfaceAreToldByName) {
  try {
    listen_tcp(with_addresses_of(store_.get(), {.port_min = endpoint_.port, .port_max = endpoint_.port}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("DDPRUN_PORT_RANGE"));
  }
  try {
    listen_tcp(with_addresses_of(store_.get(), {.interface = "nosuch0"}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'nosuch0'"));
  }
}

}  // namespace
}  // namespace ddp::core
