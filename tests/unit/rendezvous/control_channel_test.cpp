// The control channel's two ends and the connection between them, on loopback, in one event loop.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/membership_client.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/message_json.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Pair {
  io::UniqueFd client, server;
  sockaddr_storage peer{};
};

Pair connected_pair() {
  store::RawListener listener;
  Pair out;
  out.client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = store::loopback(listener.port());
  store::require(::connect(out.client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  out.server.reset(::fcntl(listener.accept().fd(), F_DUPFD_CLOEXEC, 3));
  socklen_t length = sizeof out.peer;
  store::require(::getpeername(out.server.get(), reinterpret_cast<sockaddr*>(&out.peer), &length) == 0, "getpeername");
  return out;
}

class ControlChannel : public ::testing::Test {
 protected:
  // Runs the loop until `condition`; false at the deadline.
  template <class Condition>
  bool run_until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + store::kPatience;
    io.restart();
    while (!condition() && io.run_one_until(deadline) == 1) {
    }
    return condition();
  }

  Hello hello() const {
    Hello out;
    out.run_id = "job";
    out.host_name = "a";
    out.nodes_min = out.nodes_max = 2;
    return out;
  }

  std::unique_ptr<MembershipServer> server_for_two(std::chrono::milliseconds heartbeat_timeout) {
    MembershipOptions options;
    options.run_id = "job";
    options.nodes_min = options.nodes_max = 2;
    return std::make_unique<MembershipServer>(
        io, options, heartbeat_timeout,
        MembershipLink::Handlers{[](const ToAgent&) {}, [](const LinkLost&) {},
                                 [this](const std::string& line) { said.push_back(line); }});
  }

  asio::io_context io;
  std::vector<std::string> said;
};

TEST_F(ControlChannel, NobodyHearsOfItsEndAfterItWasClosed) {
  auto pair = connected_pair();
  bool heard = false, ran = false;
  Channel::Options options;
  options.queue_bytes_max = 10;
  auto channel = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, options,
                                           Channel::Handlers{{}, {}, [&](const Channel::Closed&) { heard = true; }});
  channel->send("more than ten bytes");  // so it ends, which is told from the event loop
  channel.reset();
  asio::post(io, [&] { ran = true; });
  ASSERT_TRUE(run_until([&] { return ran; }));
  EXPECT_FALSE(heard);
}

TEST_F(ControlChannel, AnEndThatThePeersKernelTellsIsToldFromSilence) {
  Channel::Options options;
  options.handshake_timeout = options.heartbeat_timeout = 200ms;
  std::optional<Channel::Closed> of_the_dead, of_the_silent;
  auto dead = connected_pair(), silent = connected_pair();
  bool is_open = false;
  Channel to_the_dead(io, std::move(dead.server), Channel::Side::server, options,
                      {[&] { is_open = true; }, {}, [&](const Channel::Closed& how) { of_the_dead = how; }});
  Channel to_the_silent(io, std::move(silent.server), Channel::Side::server, options,
                        {{}, {}, [&](const Channel::Closed& how) { of_the_silent = how; }});
  auto peer = std::make_unique<Channel>(io, std::move(dead.client), Channel::Side::client, Channel::Options{},
                                        Channel::Handlers{});
  ASSERT_TRUE(run_until([&] { return is_open; }));
  peer.reset();
  ASSERT_TRUE(run_until([&] { return of_the_dead && of_the_silent; }));
  EXPECT_TRUE(of_the_dead->by_peer) << of_the_dead->why;
  EXPECT_FALSE(of_the_silent->by_peer) << of_the_silent->why;
}

TEST_F(ControlChannel, WhoOpensAConnectionAndSaysNothingIsCutOff) {
  const auto server = server_for_two(100ms);
  auto pair = connected_pair();
  server->adopt(std::move(pair.server), pair.peer);
  bool opened = false, closed = false;
  Channel silent(io, std::move(pair.client), Channel::Side::client, {},  // its heart beats
                 {[&] { opened = true; }, {}, [&](const Channel::Closed&) { closed = true; }});
  ASSERT_TRUE(run_until([&] { return closed; }));
  EXPECT_TRUE(opened);
  EXPECT_THAT(said.back(), HasSubstr("it said nothing"));
}

TEST_F(ControlChannel, AJobThatEndsTakesNobodyInAnyMore) {
  const auto server = server_for_two(3s);
  auto member = connected_pair(), late = connected_pair();
  server->adopt(std::move(member.server), member.peer);  // it never shakes hands, so its farewell takes the whole limit
  server->finish([] {});
  server->adopt(std::move(late.server), late.peer);
  store::RawSocket socket(std::move(late.client));
  EXPECT_TRUE(socket.is_hung_up());
}

TEST_F(ControlChannel, ANodeThatHasJoinedWaitsAsLongAsMembership) {
  constexpr auto kJoinTimeout = 2s;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  std::optional<Channel> endpoint;
  asio::steady_timer later(io);
  const auto answer = [&](std::string_view) {
    endpoint->send(to_json(ToAgent(Welcome{})));
    later.expires_after(kJoinTimeout + 100ms);
    later.async_wait([&](boost::system::error_code) { endpoint->send(to_json(ToAgent(StartRound{}))); });
  };
  acceptor.async_accept([&](boost::system::error_code error, tcp::socket socket) {
    ASSERT_FALSE(error);
    endpoint.emplace(io, io::UniqueFd(socket.release()), Channel::Side::server, Channel::Options{},
                     Channel::Handlers{{}, answer, {}});
  });
  bool began = false;
  std::optional<LinkLost> lost;
  MembershipClient client(io, {"127.0.0.1", acceptor.local_endpoint().port()}, kJoinTimeout, 3s,
                          {[&](const ToAgent& message) { began = began || std::holds_alternative<StartRound>(message); },
                           [&](const LinkLost& why) { lost = why; }, [](const std::string&) {}});
  client.send(hello());
  EXPECT_TRUE(run_until([&] { return began || lost; }));
  EXPECT_FALSE(lost) << lost->what;
}

}  // namespace
}  // namespace ddp::rendezvous
