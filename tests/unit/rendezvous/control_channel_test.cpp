// The control channel's two ends and the connection between them, on loopback, in one event loop.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
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
    server.emplace(io, options, MembershipServer::Handlers{[](const ToAgent&) {}, say, {}});
    Reception::Options rules;
    rules.heartbeat_timeout = heartbeat_timeout;
    rules.waiting_max = 2;
    rules.http = [this](const HttpQuestion& question) {
      return answer_operator(question, {{"job", server->membership().view()}});
    };
    rules.farewell = [this](const std::string& node_key) { return server->take_farewell(node_key); };
    reception.emplace(io, rules, [this](const Hello&) -> Reception::Direction { return std::ref(*server); }, say);
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

TEST_F(ControlChannel, AGuardiansFarewellIsForTheJobThatKnowsItsNode) {
  serve_job();
  server->send(hello());
  ASSERT_TRUE(run_until([&] { return !server->membership().view().nodes.empty(); }));
  const auto farewell = [&](const std::string& key) { return answer_to("POST /v1/farewell/" + key + " HTTP/1.1\r\n\r\n"); };
  EXPECT_THAT(farewell(std::string(32, 'b')), StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(server->membership().view().nodes.size(), 1u);
  EXPECT_THAT(farewell(hello().node_key), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(server->membership().view().nodes.empty());
  EXPECT_THAT(answer_to("POST /v1/farewells HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(ControlChannel, WhoServesNoJobSaysWhereItIs) {
  const auto say = [this](const std::string& line) { said.push_back(line); };
  Reception::Direction direction = Elsewhere{"10.0.0.1", 29400};
  reception.emplace(io, Reception::Options{}, [&](const Hello&) { return direction; }, say);
  for (const bool is_known : {true, false}) {
    if (!is_known) direction = std::monostate();
    auto pair = connected_pair();
    reception->adopt(std::move(pair.server), pair.peer);
    std::optional<ToAgent> heard;
    std::optional<Channel::Closed> closed;
    std::unique_ptr<Channel> node;
    node = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, Channel::Options{},
                                     Channel::Handlers{[&] { node->send(to_json(ToMembership(hello()))); },
                                                       [&](std::string_view text) { heard = to_agent_of(text); },
                                                       [&](const Channel::Closed& how) { closed = how; }});
    ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
    EXPECT_TRUE(closed->by_peer);
    if (is_known)
      EXPECT_EQ(heard, ToAgent(Elsewhere{"10.0.0.1", 29400}));
    else
      EXPECT_FALSE(heard);
  }
  EXPECT_TRUE(said.empty()) << said.front();
}

// An endpoint that the test plays, and an agent that comes to it.
class ControlClient : public ControlChannel {
 protected:
  ControlClient() { take_next(); }

  void take_next() {
    acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (error) return;
      endpoint = std::make_unique<Channel>(io, io::UniqueFd(socket.release()), Channel::Side::server, Channel::Options{},
                                           Channel::Handlers{{}, [this](std::string_view text) { heard.push_back(to_membership_of(text)); }, {}});
      take_next();
    });
  }

  void join(std::chrono::milliseconds join_timeout) {
    client = std::make_unique<MembershipClient>(
        io, EndpointName{"127.0.0.1", acceptor.local_endpoint().port()}, Session::Options{join_timeout, 3s, 60s}, hello(),
        MembershipClient::Handlers{
            [this](const ToAgent& message) { rounds += std::holds_alternative<StartRound>(message) ? 1 : 0; },
            [this](const LinkLost& why) { lost = why; }, [this](const std::string& line) { said.push_back(line); }, {}, {}});
    client->begin();
    ASSERT_TRUE(run_until([&] { return heard.size() == 1 && std::holds_alternative<Hello>(heard.front()); }));
  }

  void tell(const ToAgent& message) { endpoint->send(to_json(message)); }

  tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
  std::unique_ptr<Channel> endpoint;
  std::vector<ToMembership> heard;
  std::unique_ptr<MembershipClient> client;
  std::optional<LinkLost> lost;
  int rounds = 0;
};

TEST_F(ControlClient, ComesAgainWhenItsConnectionBreaks_WithWhatItHas) {
  join(60s);
  tell(Welcome{});
  StartRound start;
  start.round = {100, 7, 3};
  tell(start);
  ASSERT_TRUE(run_until([&] { return rounds == 1; }));
  EXPECT_EQ(client->whereabouts()->address, "127.0.0.1");
  client->send(RoundStarted{3});
  ASSERT_TRUE(run_until([&] { return heard.size() == 2; }));
  endpoint.reset();
  ASSERT_TRUE(run_until([&] { return heard.size() == 3; }));
  const auto* again = std::get_if<Hello>(&heard.back());
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->node_key, hello().node_key);
  EXPECT_EQ(again->held, (Held{{100, 7, 3}, 0, 1, 0, false}));
  EXPECT_EQ(client->whereabouts(), std::nullopt);
  client->send(RoundFailed{3, "rank 0 failed", {}});
  tell(Welcome{});
  tell(start);
  ASSERT_TRUE(run_until([&] { return heard.size() == 5; }));
  EXPECT_EQ(heard[3], ToMembership(RoundStarted{3}));
  EXPECT_EQ(heard[4], ToMembership(RoundFailed{3, "rank 0 failed", {}}));
  EXPECT_EQ(rounds, 1) << "it had begun already";
  EXPECT_THAT(said, Contains(HasSubstr("is lost: it closed the connection (127.0.0.1); it is tried again, and the workers go on")));
  EXPECT_THAT(said, Contains(HasSubstr("connected to the job again")));
  EXPECT_FALSE(lost);
}

TEST_F(ControlClient, ThatHasJoinedWaitsAsLongAsMembership) {
  constexpr auto kJoinTimeout = 2s;
  join(kJoinTimeout);
  tell(Welcome{});
  asio::steady_timer later(io, kJoinTimeout + 100ms);
  later.async_wait([&](boost::system::error_code) { tell(StartRound{}); });
  EXPECT_TRUE(run_until([&] { return rounds == 1 || lost; }));
  EXPECT_FALSE(lost) << lost->what;
}

}  // namespace
}  // namespace ddp::rendezvous
