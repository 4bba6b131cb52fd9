// Floods of connections against an endpoint that may open few descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/daemon.hpp"
#include "tests/security/raw_http.hpp"
#include "tests/security/raw_peer.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::size_t kFlood = 7'000;
constexpr rlim_t kOwnDescriptors = 64;

// Connections that send nothing, or a first byte and no more; all of them stay open at this end.
class Flood {
 public:
  Flood(std::uint16_t port, std::size_t count) {
    const auto address = store::loopback(port);
    for (std::size_t i = 0; i < count; ++i) {
      sockets_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
      polled_.push_back({sockets_.back().get(), POLLOUT, 0});
    }
  }

  // Half of them begin a request. False where not all of them got a connection.
  bool is_connected() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const auto is_open = [](const pollfd& polled) { return (polled.revents & POLLOUT) != 0; };
    do {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ::poll(polled_.data(), polled_.size(), 100);
    } while (!std::all_of(polled_.begin(), polled_.end(), is_open));
    for (std::size_t i = 0; i < sockets_.size(); i += 2) ::send(sockets_[i].get(), "G", 1, MSG_NOSIGNAL);
    return true;
  }

 private:
  std::vector<base::UniqueFd> sockets_;
  std::vector<pollfd> polled_;
};

// A program of this build that may open 1,024 descriptors, and uses 512 of them unless it asks for more.
Job::Options limited() {
  Job::Options options;
  options.program = "/bin/sh";
  return options;
}
std::vector<std::string> with_few_descriptors(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> out{"-c", "ulimit -Sn 512 && ulimit -Hn 1024 && exec \"$0\" \"$@\"", built(program)};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::vector<std::string> node_at(const std::string& port, const std::string& conf, const std::string& script) {
  return {"--nproc-per-node=1",
          "--nnodes=2",
          "--rdzv-backend=c10d",
          "--rdzv-endpoint=127.0.0.1:" + port,
          "--rdzv-id=job",
          "--rdzv-conf=" + conf,
          "sh",
          "-c",
          script};
}

class FloodOfSilentConnections : public ::testing::Test {
 protected:
  void SetUp() override {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    if (before_.rlim_max < kFlood + kOwnDescriptors) GTEST_SKIP() << "this process may not open 7,000 connections";
    const rlimit raised{before_.rlim_max, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  void TearDown() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(FloodOfSilentConnections, DoesNotKeepNodesFromTheDaemon) {
  Job daemon(with_few_descriptors("ddp-rendezvous", {"--port=0", "--host=127.0.0.1"}), limited());
  const auto port = daemon.number_after("membership listens on port ");
  Flood flood(static_cast<std::uint16_t>(port), kFlood);
  ASSERT_TRUE(flood.is_connected());
  const auto arguments = node_at(std::to_string(port), "join_timeout=50", "true");
  Job first(arguments), second(arguments);
  EXPECT_EQ(first.wait(), 0) << first.err() << daemon.err();
  EXPECT_EQ(second.wait(), 0) << second.err() << daemon.err();
  EXPECT_THAT(answer_to(static_cast<std::uint16_t>(port), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              HasSubstr("\nddp_warnings_total{reason=\"too many silent connections\"} "));
}

TEST_F(FloodOfSilentConnections, DoesNotKeepNodesFromADdprunThatServesTheEndpoint) {
  const auto port = free_port();
  Job host(with_few_descriptors("ddprun", node_at(port, "is_host=true,join_timeout=50", "echo limit $(ulimit -Sn)")),
           limited());
  ASSERT_TRUE(host.prints("waiting")) << host.err();
  Flood flood(static_cast<std::uint16_t>(std::stoi(port)), kFlood);
  ASSERT_TRUE(flood.is_connected());
  Job node(node_at(port, "is_host=false,join_timeout=50", "true"));
  EXPECT_EQ(node.wait(), 0) << node.err() << host.err();
  EXPECT_EQ(host.wait(), 0) << host.err();
  EXPECT_THAT(host.out(), HasSubstr("limit 512\n")) << "workers have the limit that ddprun was started with";
}

// A connection from this loopback address over which an agent has said hello. Its end is never answered.
store::RawSocket one_that_stays(std::uint16_t port, const std::string& hello, std::uint32_t address = INADDR_LOOPBACK) {
  auto socket = store::RawSocket::unconnected();
  const auto source = store::loopback(0, address);
  store::require(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&source), sizeof source) == 0, "bind");
  socket.connect(port);
  socket.send(
      "GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nUser-Agent: ddprun\r\n\r\n");
  EXPECT_THAT(socket.receive(145), HasSubstr(" 101 "));
  const std::string no_mask(4, '\0');
  const char length[] = {static_cast<char>(hello.size() >> 8), static_cast<char>(hello.size() & 0xff)};
  socket.send("\x81\xfe" + std::string(length, 2) + no_mask + hello);
  return socket;
}

TEST(FloodOfRefusedHellos, TakesNoPlaceOfANodeThatComesThen) {
  const auto port = free_port();
  Job host(node_at(port, "is_host=true,join_timeout=50", "true"));
  ASSERT_TRUE(host.prints("waiting")) << host.err();
  auto hello = hello_of('a');
  hello["run_id"] = "another";
  std::vector<store::RawSocket> refused;
  for (int i = 0; i < 400; ++i) {
    hello["node_key"] = std::string(29, 'a') + std::to_string(100 + i);
    refused.push_back(one_that_stays(static_cast<std::uint16_t>(std::stoi(port)), hello.dump()));
    EXPECT_THAT(refused.back().receive_until("\"is_other_job\":true"), EndsWith("\"is_other_job\":true"));
  }
  Job node(node_at(port, "is_host=false,join_timeout=50", "true"));
  EXPECT_EQ(node.wait(), 0) << node.err() << host.err();
  EXPECT_EQ(host.wait(), 0) << host.err();
}

TEST(FloodOfJobs, ByOneAddressIsBoundedAndKeepsNobodyElseOut) {
  // The attacker's heart does not beat.
  Job daemon(with_few_descriptors("ddp-rendezvous", {"--port=0", "--host=127.0.0.1", "--heartbeat-timeout=60"}),
             limited());
  const auto port = static_cast<std::uint16_t>(daemon.number_after("membership listens on port "));
  constexpr int kShare = 128;  // a quarter of half of the descriptors
  constexpr std::uint32_t kSource = 0x7f010001;
  auto hello = hello_of('a');
  const auto begin = [&](int number) {
    hello["run_id"] = "job " + std::to_string(number);
    hello["node_key"] = std::string(29, 'a') + std::to_string(100 + number);
    return one_that_stays(port, hello.dump(), kSource);
  };
  std::vector<store::RawSocket> jobs;
  for (int number = 0; number < kShare; ++number) {
    jobs.push_back(begin(number));
    EXPECT_THAT(jobs.back().receive_until("\"is_spare\":false"), EndsWith("\"is_spare\":false"));
  }
  EXPECT_THAT(begin(kShare).receive_until("the endpoint has 128 jobs that nodes of this"),
              AllOf(HasSubstr("\"type\":\"refused\""), EndsWith("the endpoint has 128 jobs that nodes of this")));
  EXPECT_TRUE(daemon.prints("a node at 127.1.0.1 was refused: the endpoint has 128 jobs")) << daemon.err();
  EXPECT_TRUE(daemon.prints("job=\"job 128\" node=")) << daemon.err();
  const auto arguments = node_at(std::to_string(port), "join_timeout=50", "true");
  Job first(arguments), second(arguments);
  EXPECT_EQ(first.wait(), 0) << first.err() << daemon.err();
  EXPECT_EQ(second.wait(), 0) << second.err() << daemon.err();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

constexpr int kLineFlood = 400;
constexpr std::size_t kLinesMax = 200;  // 100 at once, and one in two seconds

TEST(FloodOfLines, OfNodesThatComeAndGoIsBounded) {
  Daemon daemon;
  const auto port = daemon.port();
  Job node(daemon.node("2", "true"));
  ASSERT_TRUE(daemon.prints("waiting for 1 more node")) << daemon.err();
  auto hello = hello_of('a');
  hello["nodes_min"] = hello["nodes_max"] = 3;
  for (int i = 0; i < kLineFlood; ++i) {
    hello["node_key"] = std::string(29, 'a') + std::to_string(100 + i);
    EXPECT_THAT(one_that_stays(port, hello.dump()).receive_until("\"is_other_job\":false"),
                EndsWith("\"is_other_job\":false"));
  }
  Job other(daemon.node("2", "true"));
  EXPECT_EQ(node.wait(), 0) << node.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  daemon.kill(SIGTERM);
  daemon.wait();  // reads the rest
  EXPECT_LT(count_of(daemon.err(), "\n"), kLinesMax) << daemon.err();
}

TEST(FloodOfLines, OfAnEndpointIsBounded) {
  auto endpoint = RawPeer::endpoint();
  Job node(node_of("127.0.0.1:" + std::to_string(endpoint.port()), "2", kStay));
  ASSERT_TRUE(endpoint.hear("hello")) << node.err();
  const auto spare = json_of(rendezvous::ToAgent(rendezvous::Welcome{0ms, true})).dump();
  for (int i = 0; i < kLineFlood; ++i) endpoint.say(spare);
  endpoint.say(json_of(rendezvous::ToAgent(rendezvous::FinishJob{1, {}, {}, 0, 1, 0, "what", "try"})).dump());
  EXPECT_EQ(node.wait(), 1);
  EXPECT_THAT(node.err(), HasSubstr("this one is a spare"));
  EXPECT_LT(count_of(node.err(), "\n"), kLinesMax) << node.err();
}

TEST(FloodOfLines, OfAnEndpointThatBreaksOffIsBounded) {
  auto endpoint = RawPeer::endpoint();
  Job node(node_of("127.0.0.1:" + std::to_string(endpoint.port()), "2", kStay));
  const auto welcome = json_of(rendezvous::ToAgent(rendezvous::Welcome{})).dump();
  for (int i = 0; i < 130; ++i) {  // the node says that it has lost the endpoint, and that it is there again
    ASSERT_TRUE(endpoint.hear("hello")) << node.err();
    endpoint.say(welcome);
    endpoint.say("malformed");
  }
  ASSERT_TRUE(endpoint.hear("hello")) << node.err();
  endpoint.say(json_of(rendezvous::ToAgent(rendezvous::FinishJob{1, {}, {}, 0, 1, 0, "what", "try"})).dump());
  EXPECT_EQ(node.wait(), 1);
  EXPECT_LT(count_of(node.err(), "\n"), kLinesMax) << node.err();
}

}  // namespace
}  // namespace ddp::test
