// The control channel's two ends and the connection between them, on loopback, in one event loop.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/membership_client.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/message_json.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/control/reception.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
    out.node_key = std::string(32, 'a');
    out.run_id = "job";
    out.host_name = "a";
    out.nodes_min = out.nodes_max = 2;
    return out;
  }

  // A job of two nodes, and where its agents come in.
  void serve_job(std::chrono::milliseconds heartbeat_timeout = 3s) {
    MembershipOptions options;
    options.run_id = "job";
    options.nodes_min = options.nodes_max = 2;
    const auto say = [this](const std::string& line) { said.push_back(line); };
    server.emplace(io, options, MembershipLink::Handlers{[](const ToAgent&) {}, [](const LinkLost&) {}, say});
    Reception::Options rules;
    rules.heartbeat_timeout = heartbeat_timeout;
    rules.waiting_max = 2;
    rules.http = [this](const HttpQuestion& question) {
      return answer_operator(question, {{"job", server->membership().view()}});
    };
    reception.emplace(io, rules, [this](const Hello&) -> MembershipServer& { return *server; }, say);
  }

  // What the port answers to these bytes, whole.
  std::string answer_to(const std::string& request) {
    auto pair = connected_pair();
    reception->adopt(std::move(pair.server), pair.peer);
    tcp::socket socket(io);
    socket.assign(tcp::v4(), pair.client.release());
    std::string out;
    bool is_over = false;
    asio::async_write(socket, asio::buffer(request), [&](boost::system::error_code, std::size_t) {});
    asio::async_read(socket, asio::dynamic_buffer(out), [&](boost::system::error_code, std::size_t) { is_over = true; });
    EXPECT_TRUE(run_until([&] { return is_over; }));
    return out;
  }

  asio::io_context io;
  std::vector<std::string> said;
  std::optional<MembershipServer> server;
  std::optional<Reception> reception;
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
  serve_job(100ms);
  auto pair = connected_pair();
  reception->adopt(std::move(pair.server), pair.peer);
  bool opened = false, closed = false;
  Channel silent(io, std::move(pair.client), Channel::Side::client, {},  // its heart beats
                 {[&] { opened = true; }, {}, [&](const Channel::Closed&) { closed = true; }});
  ASSERT_TRUE(run_until([&] { return closed; }));
  EXPECT_TRUE(opened);
  EXPECT_THAT(said.back(), HasSubstr("it said nothing"));
}

TEST_F(ControlChannel, AJobThatEndsTakesNobodyInAnyMore) {
  serve_job();
  bool is_done = false;
  server->finish([&] { is_done = true; });
  ASSERT_TRUE(run_until([&] { return is_done; }));
  auto late = connected_pair();
  reception->adopt(std::move(late.server), late.peer);
  std::optional<Channel::Closed> closed;
  bool heard = false;
  std::unique_ptr<Channel> node;
  node = std::make_unique<Channel>(io, std::move(late.client), Channel::Side::client, Channel::Options{},
                                   Channel::Handlers{[&] { node->send(to_json(ToMembership(hello()))); },
                                                     [&](std::string_view) { heard = true; },
                                                     [&](const Channel::Closed& how) { closed = how; }});
  ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
  EXPECT_FALSE(heard);
}

TEST_F(ControlChannel, ThoseWhoSayNothingHaveABound) {
  serve_job();
  std::vector<Pair> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(connected_pair());
    reception->adopt(std::move(waiting.back().server), waiting.back().peer);
  }
  EXPECT_THAT(said.back(), HasSubstr("from 127.0.0.1 ended before it said which job it belongs to: too many others"));
  bool ran = false;
  asio::post(io, [&] { ran = true; });  // after what the event loop has to do
  ASSERT_TRUE(run_until([&] { return ran; }));
  store::RawSocket oldest(std::move(waiting.front().client));
  EXPECT_TRUE(oldest.is_hung_up());
}

TEST_F(ControlChannel, WhoGaveUpItsPlaceIsNotHeardAnyMore) {
  serve_job();
  auto first = connected_pair(), second = connected_pair(), third = connected_pair();
  bool is_open = false, is_closed = false;
  reception->adopt(std::move(first.server), first.peer);
  Channel node(io, std::move(first.client), Channel::Side::client, {},
               {[&] { is_open = true; }, {}, [&](const Channel::Closed&) { is_closed = true; }});
  ASSERT_TRUE(run_until([&] { return is_open; }));
  reception->adopt(std::move(second.server), second.peer);
  // In one turn of the loop the third one comes, then the hello of the first.
  asio::posix::stream_descriptor arrival(io, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  arrival.async_wait(asio::posix::stream_descriptor::wait_read,
                     [&](boost::system::error_code) { reception->adopt(std::move(third.server), third.peer); });
  ASSERT_EQ(::eventfd_write(arrival.native_handle(), 1), 0);
  node.send(to_json(ToMembership(hello())));
  ASSERT_TRUE(run_until([&] { return is_closed; }));
  EXPECT_THAT(said, ElementsAre(HasSubstr("too many others")));
  EXPECT_TRUE(server->membership().is_empty());
}

TEST_F(ControlChannel, PlainHttpIsAnsweredOnTheSamePort) {
  serve_job();
  server->send(hello());
  ASSERT_TRUE(run_until([&] { return !server->membership().view().nodes.empty(); }));
  EXPECT_THAT(answer_to("GET /healthz HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Server: ddprun\r\n"), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(answer_to("GET /v1/jobs?x=1 HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(HasSubstr("Content-Type: application/json\r\n"), HasSubstr("\"run_id\": \"job\""),
                    HasSubstr("\"phase\": \"waiting for nodes\""), HasSubstr("\"host_name\": \"a\"")));
  EXPECT_THAT(answer_to("GET /metrics HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(HasSubstr("\n# TYPE ddp_job_nodes gauge\n"), HasSubstr("\nddp_job_nodes{job=\"job\"} 1\n")));
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("DELETE /v1/jobs HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(said, Not(Contains(HasSubstr("ended before"))));
  EXPECT_EQ(answer_to("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n\r\n"), "") << "too long";
  EXPECT_EQ(answer_to("POST /v1/jobs HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), "") << "it has a body";
}

TEST_F(ControlChannel, AWebSocketIsForAgentsOnly) {
  serve_job();
  const std::string upgrade = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
  EXPECT_THAT(answer_to("GET /v1/agents HTTP/1.1\r\n" + upgrade + "Origin: http://evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("GET /other HTTP/1.1\r\n" + upgrade + "\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST(OperatorView, IsForThoseOnThisHostButForItsHealth) {
  EXPECT_EQ(answer_operator({"/healthz", "gpu17:29400", false}, {}).status, 200u);
  for (const auto* target : {"/v1/jobs", "/metrics"}) {
    EXPECT_EQ(answer_operator({target, "localhost", false}, {}).status, 403u);
    for (const auto* host : {"localhost", "localhost:29400", "127.0.0.1:29400", "127.0.0.2", "[::1]:29400"})
      EXPECT_EQ(answer_operator({target, host, true}, {}).status, 200u) << host;
    for (const auto* host : {"", "evil.example", "127.0.0.1.evil.example:29400", "localhost.evil.example", "10.0.0.1"})
      EXPECT_EQ(answer_operator({target, host, true}, {}).status, 403u) << host;
  }
}

TEST(OperatorView, NamesOfJobsAreEscaped) {
  const auto metrics = answer_operator({"/metrics", "localhost", true}, {{"a\"b\\c\nd", {}}}).body;
  EXPECT_THAT(metrics, HasSubstr("{job=\"a\\\"b\\\\c\\nd\"} -1\n"));
}

TEST_F(ControlChannel, AnAgentThatMissesHeartbeatsClosesItsConnectionOnlyWhenItIsDone) {
  asio::io_context elsewhere;  // a loop that stands still is silent
  tcp::acceptor acceptor(elsewhere, {asio::ip::address_v4::loopback(), 0});
  std::optional<Channel> endpoint;
  std::optional<Channel::Closed> closed;
  Channel::Options patient;
  patient.heartbeat_timeout = 60s;
  acceptor.async_accept([&](boost::system::error_code error, tcp::socket socket) {
    ASSERT_FALSE(error);
    endpoint.emplace(elsewhere, io::UniqueFd(socket.release()), Channel::Side::server, patient,
                     Channel::Handlers{{},
                                       [&](std::string_view) {
                                         endpoint->send(to_json(ToAgent(Welcome{})));
                                         endpoint->send(to_json(ToAgent(StartRound{})));
                                       },
                                       [&](const Channel::Closed& how) { closed = how; }});
  });
  bool began = false, is_lost = false;
  auto client = std::make_unique<MembershipClient>(
      io, EndpointName{"127.0.0.1", acceptor.local_endpoint().port()}, 60s, 300ms,
      MembershipLink::Handlers{
          [&](const ToAgent& message) { began = began || std::holds_alternative<StartRound>(message); },
          [&](const LinkLost&) { is_lost = true; }, [](const std::string&) {}});
  client->send(hello());
  const auto deadline = std::chrono::steady_clock::now() + store::kPatience;
  while (!began && std::chrono::steady_clock::now() < deadline) {
    elsewhere.poll();
    io.run_one_for(1ms);  // each loop waits for the other
  }
  ASSERT_TRUE(began);
  ASSERT_TRUE(run_until([&] { return is_lost; }));
  for (int i = 0; i < 20; ++i) elsewhere.poll();
  EXPECT_FALSE(closed) << closed->why;
  client.reset();
  io.poll();
  while (!closed && elsewhere.run_one_until(deadline) == 1) {
  }
  ASSERT_TRUE(closed);
  EXPECT_TRUE(closed->by_peer);
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
