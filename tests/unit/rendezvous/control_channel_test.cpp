// The control channel's two ends and the connection between them, on loopback, in one event loop; plain and under TLS.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/control/reception.hpp"
#include "rendezvous/link/membership_client.hpp"
#include "rendezvous/security/stream.hpp"
#include "rendezvous/wire/channel.hpp"
#include "rendezvous/wire/message_json.hpp"
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
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Pair {
  base::UniqueFd client, server;
  sockaddr_storage peer{};
};

Pair connected_pair() {
  store::RawListener listener;
  Pair out;
  out.client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = store::loopback(listener.port());
  store::require(::connect(out.client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
                 "connect");
  out.server.reset(::fcntl(listener.accept().fd(), F_DUPFD_CLOEXEC, 3));
  socklen_t length = sizeof out.peer;
  store::require(::getpeername(out.server.get(), reinterpret_cast<sockaddr*>(&out.peer), &length) == 0, "getpeername");
  return out;
}

std::shared_ptr<const security::Security> with_token(const std::string& token = "secret_of_a_test") {
  return std::make_shared<security::Security>(security::Tokens::of_lines(token));
}

// With the parameter all of it is under TLS.
class ControlChannel : public ::testing::TestWithParam<bool> {
 protected:
  Channel::Options options() const {
    Channel::Options out;
    if (token) out.tls = {token, &token->tls};
    return out;
  }

  void adopt(Pair& pair) { adopt(pair, token != nullptr); }
  void adopt(Pair& pair, bool is_tls) {
    is_tls ? reception->adopt_tls(std::move(pair.server), pair.peer)
           : reception->adopt(std::move(pair.server), pair.peer);
  }

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
    rules.pace = pace;
    rules.security = token;
    rules.scrape_tokens = security::Tokens(security::Token("hush_of_scrapers"));
    rules.http = [this](const HttpQuestion& question) {
      return answer_operator(question,
                             [this] {
                               return JobViews{{"job", server->membership().view()}};
                             },
                             {{"no token", 7}});
    };
    rules.farewell = [this](const NodeEnded& node) { return server->take_farewell(node); };
    reception.emplace(
        io, rules, [this](const Hello&, const base::Address&) -> Reception::Direction { return std::ref(*server); },
        warn());
  }

  base::Warn warn() {
    return [this](const base::Warning& warning) { said.push_back(warning.text); };
  }

  // What the port answers to these bytes, whole; they are plain, unless this is given.
  std::string answer_to(const std::string& request, const security::Tls* tls = nullptr) {
    auto pair = connected_pair();
    adopt(pair, tls != nullptr);
    security::Stream stream(io);
    auto& socket = stream.next_layer();
    socket.assign(tcp::v4(), pair.client.release());
    socket.non_blocking(true);
    if (tls != nullptr) {
      stream.begin_tls(tls->begin(socket.native_handle(), security::Tls::Side::client));
      shake_hands(stream);
    }
    std::string out;
    bool is_over = false;
    asio::async_write(stream, asio::buffer(request), [&](boost::system::error_code, std::size_t) {});
    asio::async_read(stream, asio::dynamic_buffer(out),
                     [&](boost::system::error_code, std::size_t) { is_over = true; });
    EXPECT_TRUE(run_until([&] { return is_over; }));
    return out;
  }

  // Whether a connection under TLS gets its WebSocket.
  bool opens(const std::shared_ptr<const security::Security>& theirs) {
    auto pair = connected_pair();
    adopt(pair);
    Channel::Options how;
    how.tls = {theirs, &theirs->tls};
    bool is_open = false, is_closed = false;
    Channel node(io, std::move(pair.client), Channel::Side::client, how,
                 {[&] { is_open = true; }, {}, [&](const Channel::Closed&) { is_closed = true; }});
    EXPECT_TRUE(run_until([&] { return is_open || is_closed; }));
    return is_open;
  }

  void shake_hands(security::Stream& stream) {
    auto& socket = stream.next_layer();
    while (true) {
      const auto progress = stream.tls()->shake_hands();
      ASSERT_FALSE(progress.error) << progress.error.message();
      if (progress.want == security::TlsSession::Want::nothing) return;
      bool is_ready = false;
      socket.async_wait(progress.want == security::TlsSession::Want::read ? socket.wait_read : socket.wait_write,
                        [&](boost::system::error_code) { is_ready = true; });
      ASSERT_TRUE(run_until([&] { return is_ready; }));
    }
  }

  asio::io_context io;
  std::shared_ptr<const security::Security> token = GetParam() ? with_token() : nullptr;
  HandshakePace::Options pace;
  std::vector<std::string> said;
  std::optional<MembershipServer> server;
  std::optional<Reception> reception;
};

TEST_P(ControlChannel, NobodyHearsOfItsEndAfterItWasClosed) {
  auto pair = connected_pair();
  bool heard = false, ran = false;
  auto small = options();
  small.queue_bytes_max = 10;
  auto channel = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, small,
                                           Channel::Handlers{{}, {}, [&](const Channel::Closed&) { heard = true; }});
  channel->send("more than ten bytes");  // so it ends, which is told from the event loop
  channel.reset();
  asio::post(io, [&] { ran = true; });
  ASSERT_TRUE(run_until([&] { return ran; }));
  EXPECT_FALSE(heard);
}

TEST_P(ControlChannel, AnEndThatThePeersKernelTellsIsToldFromSilence) {
  auto impatient = options();
  impatient.handshake_timeout = impatient.heartbeat_timeout = 2s;
  std::optional<Channel::Closed> of_the_dead, of_the_silent;
  auto dead = connected_pair(), silent = connected_pair();
  bool is_open = false;
  Channel to_the_dead(io, std::move(dead.server), Channel::Side::server, impatient,
                      {[&] { is_open = true; }, {}, [&](const Channel::Closed& how) { of_the_dead = how; }});
  Channel to_the_silent(io, std::move(silent.server), Channel::Side::server, impatient,
                        {{}, {}, [&](const Channel::Closed& how) { of_the_silent = how; }});
  auto peer =
      std::make_unique<Channel>(io, std::move(dead.client), Channel::Side::client, options(), Channel::Handlers{});
  ASSERT_TRUE(run_until([&] { return is_open; }));
  peer.reset();
  ASSERT_TRUE(run_until([&] { return of_the_dead && of_the_silent; }));
  EXPECT_TRUE(of_the_dead->by_peer) << of_the_dead->why;
  EXPECT_FALSE(of_the_silent->by_peer) << of_the_silent->why;
}

TEST_P(ControlChannel, WhoOpensAConnectionAndSaysNothingIsCutOff) {
  serve_job(1s);
  auto pair = connected_pair();
  adopt(pair);
  bool opened = false, closed = false;
  Channel silent(io, std::move(pair.client), Channel::Side::client, options(),  // its heart beats
                 {[&] { opened = true; }, {}, [&](const Channel::Closed&) { closed = true; }});
  ASSERT_TRUE(run_until([&] { return closed; }));
  EXPECT_TRUE(opened);
  EXPECT_THAT(said.back(), HasSubstr("it said nothing"));
}

TEST_P(ControlChannel, AJobThatEndsTakesNobodyInAnyMore) {
  serve_job();
  bool is_done = false;
  server->finish([&] { is_done = true; });
  ASSERT_TRUE(run_until([&] { return is_done; }));
  auto late = connected_pair();
  adopt(late);
  std::optional<Channel::Closed> closed;
  bool heard = false;
  std::unique_ptr<Channel> node;
  node = std::make_unique<Channel>(
      io, std::move(late.client), Channel::Side::client, options(),
      Channel::Handlers{[&] { node->send(to_json(ToMembership(hello()))); }, [&](std::string_view) { heard = true; },
                        [&](const Channel::Closed& how) { closed = how; }});
  ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
  EXPECT_FALSE(heard);
}

TEST_P(ControlChannel, NodeMaySayWhatTheEndpointDoesNotKnow) {
  serve_job();
  auto pair = connected_pair();
  adopt(pair);
  std::optional<Channel::Closed> closed;
  std::unique_ptr<Channel> node;
  node = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, options(),
                                   Channel::Handlers{[&] {
                                                       node->send(to_json(ToMembership(hello())));
                                                       node->send(R"({"type":"sing","song":[1]})");
                                                       node->send(to_json(ToMembership(StopAsked{15})));
                                                     },
                                                     {},
                                                     [&](const Channel::Closed& how) { closed = how; }});
  ASSERT_TRUE(run_until([&] { return server->membership().is_ending() || closed; }));
  EXPECT_TRUE(server->membership().is_ending());
  EXPECT_THAT(said, Not(Contains(HasSubstr("malformed"))));
}

TEST_P(ControlChannel, ThoseWhoSayNothingHaveABound) {
  serve_job();
  std::vector<Pair> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(connected_pair());
    adopt(waiting.back());
  }
  EXPECT_THAT(said.back(), HasSubstr("from 127.0.0.1 ended before it said which job it belongs to: too many others"));
  bool ran = false;
  asio::post(io, [&] { ran = true; });  // after what the event loop has to do
  ASSERT_TRUE(run_until([&] { return ran; }));
  store::RawSocket oldest(std::move(waiting.front().client));
  EXPECT_TRUE(oldest.is_hung_up());
}

TEST_P(ControlChannel, SourceWhoseHandshakesFailIsDelayed) {
  if (!token) GTEST_SKIP() << "without TLS there is no handshake that costs anything";
  pace = {.price = 1h, .free = 0ms};  // one failure is enough
  serve_job();
  EXPECT_TRUE(opens(token));
  EXPECT_FALSE(opens(with_token("another_secret_of_a_test")));
  EXPECT_TRUE(run_until([&] { return !said.empty(); }));
  EXPECT_FALSE(opens(token));
  EXPECT_THAT(said.back(), HasSubstr("too many handshakes from there have just failed"));
}

TEST_P(ControlChannel, SourceWithALiveSessionIsNotDelayed) {
  if (!token) GTEST_SKIP() << "without TLS there is no handshake that costs anything";
  pace = {.price = 1h, .free = 0ms};
  serve_job();
  auto pair = connected_pair();
  adopt(pair);
  std::unique_ptr<Channel> node;
  node = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, options(),
                                   Channel::Handlers{[&] { node->send(to_json(ToMembership(hello()))); }, {}, {}});
  ASSERT_TRUE(run_until([&] { return !server->membership().is_empty(); }));
  EXPECT_FALSE(opens(with_token("another_secret_of_a_test")));
  EXPECT_TRUE(run_until([&] { return !said.empty(); }));
  EXPECT_TRUE(opens(token));
  node.reset();  // the endpoint hears of that some time later
  const auto deadline = std::chrono::steady_clock::now() + store::kPatience;
  bool is_delayed = false;
  while (!is_delayed && std::chrono::steady_clock::now() < deadline)
    is_delayed = !opens(with_token("another_secret_of_a_test")) && !opens(token);
  EXPECT_TRUE(is_delayed);
}

TEST_P(ControlChannel, WhoGaveUpItsPlaceIsNotHeardAnyMore) {
  serve_job();
  auto first = connected_pair(), second = connected_pair(), third = connected_pair();
  bool is_open = false, is_closed = false;
  adopt(first);
  Channel node(io, std::move(first.client), Channel::Side::client, options(),
               {[&] { is_open = true; }, {}, [&](const Channel::Closed&) { is_closed = true; }});
  ASSERT_TRUE(run_until([&] { return is_open; }));
  adopt(second);
  // In one turn of the loop the third one comes, then the hello of the first.
  asio::posix::stream_descriptor arrival(io, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  arrival.async_wait(asio::posix::stream_descriptor::wait_read, [&](boost::system::error_code) { adopt(third); });
  ASSERT_EQ(::eventfd_write(arrival.native_handle(), 1), 0);
  node.send(to_json(ToMembership(hello())));
  ASSERT_TRUE(run_until([&] { return is_closed; }));
  EXPECT_THAT(said, ElementsAre(HasSubstr("too many others")));
  EXPECT_TRUE(server->membership().is_empty());
}

TEST_P(ControlChannel, PlainHttpIsAnsweredOnTheSamePort) {
  serve_job();
  server->send(hello());
  ASSERT_TRUE(run_until([&] { return !server->membership().view().nodes.empty(); }));
  EXPECT_THAT(answer_to("GET /healthz HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Server: ddprun\r\n"), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(answer_to("GET /v1/jobs?x=1 HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(HasSubstr("Content-Type: application/json\r\n"), HasSubstr("\"run_id\": \"job\""),
                    HasSubstr("\"phase\": \"waiting for nodes\""), HasSubstr("\"host_name\": \"a\"")));
  EXPECT_THAT(answer_to("GET /metrics HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"),
              AllOf(HasSubstr("\n# TYPE ddp_job_nodes gauge\n"), HasSubstr("\nddp_job_nodes{job=\"job\"} 1\n"),
                    HasSubstr("\nddp_warnings_total{reason=\"no token\"} 7\n")));
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("DELETE /v1/jobs HTTP/1.1\r\nHost: localhost:29400\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(said, Not(Contains(HasSubstr("ended before"))));
}

TEST_P(ControlChannel, JobsAreShownToThoseThatHaveATokenWhateverTheHost) {
  serve_job();
  const auto ask = [this](const std::string& bearer) {
    return answer_to("GET /v1/jobs HTTP/1.1\r\nHost: gpu17\r\nAuthorization: Bearer " + bearer + "\r\n\r\n");
  };
  EXPECT_THAT(ask("hush_of_scrapers"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ask("secret_of_a_test"), StartsWith(token ? "HTTP/1.1 200 " : "HTTP/1.1 401 "));
  EXPECT_THAT(ask("scrap"), StartsWith("HTTP/1.1 401 "));
}

TEST_P(ControlChannel, MalformedHttpIsAnsweredWith400) {
  serve_job();
  const struct {
    const char* what;
    std::string request;
  } cases[] = {{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n"},
               {"two hosts", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"},
               {"a user in the host", "GET /v1/jobs HTTP/1.1\r\nHost: localhost:80@evil.example\r\n\r\n"},
               {"a line feed alone", "GET /healthz HTTP/1.1\nHost: localhost\n\n"},
               {"another version", "GET /healthz HTTP/3.0\r\nHost: localhost\r\n\r\n"},
               {"a header without a colon", "GET /healthz HTTP/1.1\r\nHost\r\n\r\n"},
               {"too long", "GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n\r\n"},
               {"a body", "POST /v1/jobs HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"}};
  for (const auto& c : cases) EXPECT_THAT(answer_to(c.request), StartsWith("HTTP/1.1 400 Bad Request\r\n")) << c.what;
}

TEST_P(ControlChannel, AWebSocketIsForAgentsOnly) {
  serve_job();
  const std::string upgrade =
      "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
  EXPECT_THAT(answer_to("GET /v1/agents HTTP/1.1\r\n" + upgrade + "Origin: http://evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to("GET /other HTTP/1.1\r\n" + upgrade + "\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST(OperatorView, IsForThoseOnThisHostButForItsHealth) {
  const auto status = [](const char* target, const char* host, bool is_local, bool has_token = false) {
    return answer_operator({"GET", target, host, is_local, has_token}, [] { return JobViews(); }, {}).status;
  };
  EXPECT_EQ(status("/healthz", "gpu17:29400", false), 200u);
  for (const auto* target : {"/v1/jobs", "/metrics"}) {
    EXPECT_EQ(status(target, "localhost", false), 403u);
    EXPECT_EQ(status(target, "gpu17:29400", false, true), 200u);
    for (const auto* host : {"localhost", "localhost:29400", "127.0.0.1:29400", "127.0.0.2", "[::1]:29400"})
      EXPECT_EQ(status(target, host, true), 200u) << host;
    for (const auto* host : {"", "evil.example", "127.0.0.1.evil.example:29400", "localhost.evil.example", "10.0.0.1",
                             "node_1:29400", "[fd00::1]:29400"})
      EXPECT_EQ(status(target, host, true), 403u) << host;
    for (const auto* host : {"localhost:80@evil.example", "localhost@evil.example", ":80x", "[::1", "[::1]x",
                             "[localhost]", "localhost/", "local host", "127.0.0.1:80:80", "[::1]:80@evil.example"})
      EXPECT_EQ(status(target, host, true), 400u) << host;
  }
}

TEST(OperatorView, NamesOfJobsAreEscaped) {
  const auto metrics = answer_operator({"GET", "/metrics", "localhost", true},
                                       [] {
                                         return JobViews{{"a\"b\\c\nd", {}}};
                                       },
                                       {})
                           .body;
  EXPECT_THAT(metrics, HasSubstr("{job=\"a\\\"b\\\\c\\nd\"} -1\n"));
}

TEST_P(ControlChannel, AGuardiansFarewellIsForTheJobThatKnowsItsNode) {
  serve_job();
  server->send(hello());
  ASSERT_TRUE(run_until([&] { return !server->membership().view().nodes.empty(); }));
  const auto farewell = [&](const std::string& key) {
    return answer_to("POST /v1/farewell/" + key + " HTTP/1.1\r\n\r\n", token ? &token->tls : nullptr);
  };
  if (token) {
    EXPECT_THAT(answer_to("POST /v1/farewell/" + hello().node_key + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 401 "))
        << "in the clear, where anybody could have read the key";
    EXPECT_EQ(server->membership().view().nodes.size(), 1u);
  }
  EXPECT_THAT(farewell(std::string(32, 'b')), StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(server->membership().view().nodes.size(), 1u);
  EXPECT_THAT(farewell(hello().node_key), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(server->membership().view().nodes.empty());
  EXPECT_THAT(answer_to("POST /v1/farewells HTTP/1.1\r\n\r\n", token ? &token->tls : nullptr),
              StartsWith("HTTP/1.1 404 "));
}

TEST_P(ControlChannel, AFarewellMaySayWhichSignalKilledDdprun) {
  const struct {
    std::string header;
    const char* why;
  } cases[] = {{"Killed-By-Signal: 9\r\n", "its ddprun was killed by SIGKILL"},
               {"", "its ddprun ended"},
               {"Killed-By-Signal: 0\r\n", "its ddprun ended"},
               {"Killed-By-Signal: 65\r\n", "its ddprun ended"},
               {"Killed-By-Signal: 9a\r\n", "its ddprun ended"},
               {"Killed-By-Signal: 99999999999\r\n", "its ddprun ended"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.header);
    reception.reset();
    serve_job();
    server->send(hello());
    ASSERT_TRUE(run_until([&] { return !server->membership().view().nodes.empty(); }));
    said.clear();
    EXPECT_THAT(answer_to("POST /v1/farewell/" + hello().node_key + " HTTP/1.1\r\n" + c.header + "\r\n",
                          token ? &token->tls : nullptr),
                StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(said, Contains(HasSubstr(c.why)));
  }
}

TEST_P(ControlChannel, WhoServesNoJobSaysWhereItIs) {
  Reception::Options rules;
  rules.security = token;
  Reception::Direction direction = Elsewhere{"10.0.0.1", 29400};
  reception.emplace(
      io, rules, [&](const Hello&, const base::Address&) { return direction; }, warn());
  for (const bool is_known : {true, false}) {
    if (!is_known) direction = std::monostate();
    auto pair = connected_pair();
    adopt(pair);
    std::optional<ToAgent> heard;
    std::optional<Channel::Closed> closed;
    std::unique_ptr<Channel> node;
    node = std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, options(),
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
      endpoint = std::make_unique<Channel>(
          io, base::UniqueFd(socket.release()), Channel::Side::server, options(),
          Channel::Handlers{
              {}, [this](std::string_view text) { heard.push_back(to_membership_of(text).value()); }, {}});
      take_next();
    });
  }

  void join(std::chrono::milliseconds join_timeout) {
    client = std::make_unique<MembershipClient>(
        io, EndpointName{"127.0.0.1", acceptor.local_endpoint().port()}, Session::Options{join_timeout, 3s, 60s},
        hello(),
        MembershipClient::Handlers{
            [this](const ToAgent& message) { rounds += std::holds_alternative<StartRound>(message) ? 1 : 0; },
            [this](const LinkLost& why) { lost = why; }, [this](const std::string& line) { said.push_back(line); },
            [](const Session::StopOrphans&) {}, [this](const LostHost&) { serve_next(); }},
        token);
    client->begin();
    ASSERT_TRUE(run_until([&] { return heard.size() == 1 && std::holds_alternative<Hello>(heard.front()); }));
  }

  void tell(const ToAgent& message) { endpoint->send(to_json(message)); }

  void serve_next() {
    MembershipOptions its;
    its.run_id = "job";
    its.nodes_min = its.nodes_max = 2;
    MembershipServer::Handlers handlers;
    handlers.message = [this](const ToAgent& message) { client->hear(message); };
    handlers.print = [this](const std::string& line) { said.push_back(line); };
    handlers.stepped_down = [this](const HostCore::StepDown& how) {
      down = how;
      client->step_down(Session::stepped_down(how));
    };
    server.emplace(io, its, std::move(handlers));
    client->host(*server);
  }

  static StartRound round_3() {
    StartRound start;
    start.round = {100, 7, 3};
    start.master_port = 29400;
    start.nonce = std::string(32, 'b');
    return start;
  }

  tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
  std::unique_ptr<Channel> endpoint;
  std::vector<ToMembership> heard;
  std::unique_ptr<MembershipClient> client;
  std::optional<LinkLost> lost;
  std::optional<HostCore::StepDown> down;
  int rounds = 0;
};

TEST_P(ControlClient, ThatServesNextJoinsTheEndpointIfItsCallIsAnsweredThatTheJobGoesOnThere) {
  join(60s);
  tell(Welcome{});
  auto start = round_3();
  start.group_world_size = start.world_size = 2;
  start.group_rank = start.rank_first = 1;
  start.host_group_rank = 0;
  start.successors = {{1, "127.0.0.1", 4001}};
  start.nonce = "0123456789abcdef0123456789abcdef";
  tell(start);
  ASSERT_TRUE(run_until([&] { return rounds == 1; }));
  tell(HostLeaves{});
  ASSERT_TRUE(run_until([&] { return heard.size() == 2; }));
  const auto* call = std::get_if<Hello>(&heard.back());
  ASSERT_TRUE(call != nullptr && call->is_host && call->held);
  EXPECT_EQ(call->held->nonces, std::vector{call_proof(start.nonce)}) << "a stranger may have answered";
  StopRound answer;
  answer.round = 3;
  answer.proof = answer_proof(start.nonce);
  answer.is_left_behind = true;
  tell(answer);
  ASSERT_TRUE(run_until([&] { return heard.size() == 3; }));
  ASSERT_TRUE(down);
  EXPECT_EQ(down->other_host, (Elsewhere{"127.0.0.1", acceptor.local_endpoint().port()}));
  const auto* again = std::get_if<Hello>(&heard.back());
  ASSERT_NE(again, nullptr);
  EXPECT_FALSE(again->is_host);
  EXPECT_EQ(again->held->round, start.round);
}

TEST_P(ControlClient, ComesAgainWhenItsConnectionBreaks_WithWhatItHas) {
  join(60s);
  tell(Welcome{});
  const auto start = round_3();
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
  EXPECT_EQ(again->held, (Held{{100, 7, 3}, 0, 1, 0, false, false, {start.nonce}, {}, {}, {}, "127.0.0.1"}));
  EXPECT_EQ(client->whereabouts(), std::nullopt);
  client->send(RoundFailed{3, "rank 0 failed", {}});
  tell(Welcome{});
  tell(start);
  ASSERT_TRUE(run_until([&] { return heard.size() == 5; }));
  EXPECT_EQ(heard[3], ToMembership(RoundStarted{3}));
  EXPECT_EQ(heard[4], ToMembership(RoundFailed{3, "rank 0 failed", {}}));
  EXPECT_EQ(rounds, 1) << "it had begun already";
  EXPECT_THAT(
      said,
      Contains(HasSubstr(
          "is lost: it closed the connection (127.0.0.1); it is tried again, and the workers go on for up to 60 s")));
  EXPECT_THAT(said, Contains(HasSubstr("connected to the job again")));
  EXPECT_FALSE(lost);
}

TEST_P(ControlClient, IgnoresMessagesOfATypeThatItDoesNotKnow) {
  join(60s);
  endpoint->send(R"({"type":"sing"})");
  tell(Welcome{});
  endpoint->send(R"({"type":"sing","song":[1]})");
  StartRound start;
  start.master_port = 29400;
  start.nonce = std::string(32, 'b');
  tell(start);
  ASSERT_TRUE(run_until([&] { return rounds == 1; }));
  EXPECT_EQ(heard.size(), 1u) << "on one connection";
}

TEST_P(ControlClient, SaysOnceWhyItIsRefusedWhileItsWorkersRun) {
  join(60s);
  tell(Welcome{});
  const auto start = round_3();
  tell(start);
  ASSERT_TRUE(run_until([&] { return rounds == 1; }));
  endpoint.reset();
  for (std::size_t hellos = 2; hellos <= 4; ++hellos) {
    ASSERT_TRUE(run_until([&] { return heard.size() == hellos; }));
    tell(Refused{"the endpoint's ddp-rendezvous is too old", "upgrade ddp-rendezvous", false, true});
  }
  const auto is_of_it = [](const std::string& line) {
    return line.find("is too old; upgrade ddp-rendezvous") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(said.begin(), said.end(), is_of_it), 1);
  EXPECT_FALSE(lost);
}

TEST_P(ControlClient, ThatHasJoinedWaitsAsLongAsMembership) {
  constexpr auto kJoinTimeout = 2s;
  join(kJoinTimeout);
  tell(Welcome{});
  StartRound start;
  start.master_port = 29400;
  start.nonce = std::string(32, 'b');
  asio::steady_timer later(io, kJoinTimeout + 100ms);
  later.async_wait([&](boost::system::error_code) { tell(start); });
  EXPECT_TRUE(run_until([&] { return rounds == 1 || lost; }));
  EXPECT_FALSE(lost) << lost->what;
}

TEST_P(ControlChannel, MessagesGoBothWaysHoweverLongTheyAre) {
  auto pair = connected_pair();
  const std::string text(200'000, 'x');
  std::size_t came = 0;
  std::optional<Channel> server_end, client_end;
  server_end.emplace(
      io, std::move(pair.server), Channel::Side::server, options(),
      Channel::Handlers{{}, [&](std::string_view message) { server_end->send(std::string(message)); }, {}});
  client_end.emplace(io, std::move(pair.client), Channel::Side::client, options(),
                     Channel::Handlers{{}, [&](std::string_view message) { came += message == text ? 1 : 0; }, {}});
  for (int i = 0; i < 20; ++i) client_end->send(text);
  EXPECT_TRUE(run_until([&] { return came == 20; }));
  std::optional<Channel::Closed> closed;
  server_end->hand_over({{}, {}, [&](const Channel::Closed& how) { closed = how; }});
  bool is_done = false;
  client_end->finish([&] { is_done = true; });
  EXPECT_TRUE(run_until([&] { return is_done && closed; }));
}

TEST_P(ControlChannel, WhoDoesNotReadIsCutOffAtABound) {
  auto pair = connected_pair();
  bool is_open = false;
  std::optional<Channel::Closed> closed;
  auto small = options();
  small.queue_bytes_max = 10'000'000;
  Channel channel(io, std::move(pair.server), Channel::Side::server, small,
                  {[&] { is_open = true; }, {}, [&](const Channel::Closed& how) { closed = how; }});
  auto peer =
      std::make_unique<Channel>(io, std::move(pair.client), Channel::Side::client, options(), Channel::Handlers{});
  ASSERT_TRUE(run_until([&] { return is_open; }));
  for (int i = 0; i < 110 && !closed; ++i) channel.send(std::string(100'000, 'x'));  // the loop does not run meanwhile
  ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
  EXPECT_EQ(closed->why, "it does not read what it is sent");
}

TEST_P(ControlChannel, PeerThatReadsIsNeverCutOff) {
  auto pair = connected_pair();
  auto small = options();
  small.queue_bytes_max = 1'000;
  std::optional<Channel::Closed> closed;
  int came = 0;
  std::optional<Channel> channel, peer;
  const auto send_half_a_queue = [&] { channel->send(std::string(small.queue_bytes_max / 2, 'x')); };
  channel.emplace(io, std::move(pair.server), Channel::Side::server, small,
                  Channel::Handlers{send_half_a_queue, {}, [&](const Channel::Closed& how) { closed = how; }});
  // Each message is sent when the one before it has come, so the queue holds two messages at most.
  const auto answer = [&](std::string_view) {
    if (++came < 6) send_half_a_queue();
  };
  peer.emplace(io, std::move(pair.client), Channel::Side::client, options(), Channel::Handlers{{}, answer, {}});
  ASSERT_TRUE(run_until([&] { return came == 6 || closed; }));
  EXPECT_FALSE(closed) << closed->why;
}

INSTANTIATE_TEST_SUITE_P(Plain, ControlChannel, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, ControlChannel, ::testing::Values(true));

INSTANTIATE_TEST_SUITE_P(Plain, ControlClient, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, ControlClient, ::testing::Values(true));

// A side with a token, and another one.
class ATokenIsAskedFor : public ControlChannel {
 protected:
  // How a node fares that has this token; it must be refused.
  std::optional<LinkLost> answer_to_node(std::shared_ptr<const security::Security> its_token) {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    accept_next(acceptor, its_token != nullptr);
    std::optional<LinkLost> lost;
    MembershipClient client(io, {"127.0.0.1", acceptor.local_endpoint().port()}, Session::Options{8s, 3s, 60s}, hello(),
                            {[](const ToAgent&) {},
                             [&](const LinkLost& why) { lost = why; },
                             [&](const std::string& line) { said_by_node.push_back(line); },
                             {},
                             {}},
                            std::move(its_token));
    client.begin();
    EXPECT_TRUE(run_until([&] { return lost && !said.empty(); }));
    return lost;
  }

  std::vector<std::string> said_by_node;
  int accepted = 0;

 private:
  // As a port does.
  void accept_next(tcp::acceptor& acceptor, bool is_tls) {
    acceptor.async_accept([&, is_tls](boost::system::error_code error, tcp::socket came) {
      if (error) return;
      ++accepted;
      const auto socket = std::make_shared<tcp::socket>(std::move(came));
      socket->async_wait(tcp::socket::wait_read, [&, is_tls, socket](boost::system::error_code) {
        const auto peer = store::loopback(0);
        sockaddr_storage from{};
        std::memcpy(&from, &peer, sizeof peer);
        Pair pair{{}, base::UniqueFd(socket->release()), from};
        adopt(pair, is_tls);
      });
      accept_next(acceptor, is_tls);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Tls, ATokenIsAskedFor, ::testing::Values(true));

TEST_P(ATokenIsAskedFor, WhoHasAnotherOneSaysSoAtOnceAndTriesAgain) {
  serve_job();
  const auto lost = answer_to_node(with_token("wrong_wrong_wrong"));
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->what, HasSubstr("the endpoint has another token than this node (127.0.0.1)"));
  EXPECT_THAT(lost->try_this, HasSubstr("--token-file"));
  EXPECT_THAT(said_by_node,
              ElementsAre(lost->what + ", which anybody on the way could say; it is tried again for 2 s"));
  EXPECT_GT(accepted, 1);
  EXPECT_THAT(said.back(),
              HasSubstr("from 127.0.0.1 ended before it said which job it belongs to: it has another token"));
}

TEST_P(ATokenIsAskedFor, WhoHasNoneIsToldSoAtOnce) {
  serve_job();
  const auto lost = answer_to_node(nullptr);
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->what, HasSubstr("the endpoint asks for a token, and this node has none"));
  EXPECT_THAT(said_by_node, IsEmpty());
  EXPECT_THAT(said.back(), HasSubstr("it has no token"));
}

TEST_P(ATokenIsAskedFor, WhereThereIsNoneItIsSaidAtOnceAndTriedAgain) {
  token = nullptr;
  serve_job();
  const auto lost = answer_to_node(with_token());
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->what, HasSubstr("this node has a token and the endpoint has none"));
  EXPECT_THAT(said_by_node,
              ElementsAre(HasSubstr("the endpoint has none (127.0.0.1), which anybody on the way could")));
  EXPECT_THAT(said.back(), HasSubstr("it speaks TLS, as those do that have a token, and there is none here"));
}

TEST_P(ATokenIsAskedFor, AnOperatorElsewhereMayBringIt) {
  serve_job();
  const auto jobs = [&](const std::string& header, const security::Tls* tls = nullptr) {
    return answer_to("GET /v1/jobs HTTP/1.1\r\nHost: gpu17:29400\r\n" + header + "\r\n", tls);
  };
  EXPECT_THAT(jobs(""), StartsWith("HTTP/1.1 401 "));
  for (const auto* wrong : {"secret_of_a_tes", "secret_of_a_tests", "", "Secret_of_a_test"})
    EXPECT_THAT(jobs("Authorization: Bearer " + std::string(wrong) + "\r\n"), StartsWith("HTTP/1.1 401 ")) << wrong;
  EXPECT_THAT(jobs("Authorization: Basic secret_of_a_test\r\n"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(jobs("Authorization: Bearer secret_of_a_test\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(jobs("authorization: bearer secret_of_a_test\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(jobs("", &token->tls), StartsWith("HTTP/1.1 200 ")) << "who speaks TLS here has it";
  EXPECT_THAT(answer_to("GET /healthz HTTP/1.1\r\nHost: gpu17:29400\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  token = with_token("another_secret_of_a_test\nsecret_of_a_test");
  serve_job();
  EXPECT_THAT(jobs("Authorization: Bearer secret_of_a_test\r\n"), StartsWith("HTTP/1.1 200 ")) << "either of two";
}

// A record of TLS that holds `body`.
std::string record_of(char type, const std::string& body) {
  return std::string{type, 3, 1, static_cast<char>(body.size() >> 8), static_cast<char>(body.size() & 0xff)} + body;
}

TEST_P(ATokenIsAskedFor, WhatIsNoTlsEndsItsOwnConnectionOnly) {
  serve_job();
  const std::string random(32, 'r');
  const std::vector<std::string> attempts{
      std::string("\x16\x03\x01\xff\xff", 5) + std::string(70'000, 'x'),  // a record longer than any may be
      record_of(0x16, ""),
      record_of(0x16, std::string("\x01\x00\x00\x02\x03\x03", 6)),   // a hello that ends after its version
      record_of(0x16, std::string("\x01\xff\xff\xff", 4) + random),  // one that says it is 16 MiB long
      record_of(0x16, std::string("\x02\x00\x00\x00", 4)),           // a server's
      record_of(0x15, std::string("\x02\x28", 2)),                   // an alert
      record_of(0x17, "data before any hello"),
      "GET /v1/jobs HTTP/1.1\r\n\r\n"};
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    SCOPED_TRACE(i);
    auto pair = connected_pair();
    adopt(pair, true);
    tcp::socket socket(io);
    socket.assign(tcp::v4(), pair.client.release());
    bool is_over = false;
    std::string answer;
    asio::async_write(socket, asio::buffer(attempts[i]), [&](boost::system::error_code, std::size_t) {
      boost::system::error_code ignored;
      socket.shutdown(tcp::socket::shutdown_send, ignored);
    });
    asio::async_read(socket, asio::dynamic_buffer(answer),
                     [&](boost::system::error_code, std::size_t) { is_over = true; });
    EXPECT_TRUE(run_until([&] { return is_over; }));
  }
  EXPECT_THAT(answer_to("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", &token->tls), StartsWith("HTTP/1.1 200 "));
}

TEST_P(ATokenIsAskedFor, AHandshakeThatStandsStillIsCutOff) {
  auto pair = connected_pair();
  auto impatient = options();
  impatient.handshake_timeout = 100ms;
  std::optional<Channel::Closed> closed;
  Channel channel(io, std::move(pair.server), Channel::Side::server, impatient,
                  {{}, {}, [&](const Channel::Closed& how) { closed = how; }});
  store::RawSocket client(std::move(pair.client));
  client.send(std::string("\x16\x03\x01\x00\x80\x01", 6));  // and no more
  ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
  EXPECT_EQ(closed->why, "it has been silent for too long");
  EXPECT_TRUE(client.is_hung_up());
}

TEST_P(ATokenIsAskedFor, WhoAnswersWithoutTheKeyIsNoEndpoint) {
  auto pair = connected_pair();
  std::optional<Channel::Closed> closed;
  Channel channel(io, std::move(pair.client), Channel::Side::client, options(),
                  {{}, {}, [&](const Channel::Closed& how) { closed = how; }});
  store::RawSocket(std::move(pair.server)).send("HTTP/1.1 400 Bad Request\r\n\r\n");
  ASSERT_TRUE(run_until([&] { return closed.has_value(); }));
  EXPECT_THAT(closed->why, HasSubstr("what answers there is no ddprun"));
  EXPECT_TRUE(closed->is_stranger);
  EXPECT_EQ(closed->try_this, std::nullopt) << "something else may be there later";
}

}  // namespace
}  // namespace ddp::rendezvous
