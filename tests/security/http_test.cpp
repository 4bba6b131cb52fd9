// Who is answered over plain HTTP, and what malformed requests get.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/raw_http.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kToken = "7d3f0a5c_of_the_nodes", kScrapeToken = "b81e22c9_of_scrapers";

Job::Options daemon_options(const std::string& token = "") {
  Job::Options options;
  options.program = "ddp-rendezvous";
  if (!token.empty()) options.environment = {"DDPRUN_TOKEN=" + token};
  return options;
}

std::string get(const std::string& path, const std::string& headers = "Host: localhost\r\n") {
  return "GET " + path + " HTTP/1.1\r\n" + headers + "\r\n";
}

class Http : public ::testing::Test {
 protected:
  Http() {
    char name[] = "/tmp/ddprun_http_XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~Http() override { std::filesystem::remove_all(folder_); }

  std::string file_with(const std::string& text) {
    const auto path = folder_ + "/token";
    std::ofstream(path) << text << '\n';
    ::chmod(path.c_str(), 0600);
    return path;
  }

  static std::uint16_t port_of(Job& daemon) {
    return static_cast<std::uint16_t>(daemon.number_after("membership listens on port "));
  }

 private:
  std::string folder_;
};

TEST_F(Http, JobsAndMetricsAreNotForOtherUsersOfTheHost) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Job daemon({"--port=0", "--host=127.0.0.1"}, daemon_options());
  const auto port = port_of(daemon);
  for (const auto* path : {"/v1/jobs", "/metrics"}) {
    EXPECT_THAT(answer_to(port, get(path)), StartsWith("HTTP/1.1 200 ")) << path;
    EXPECT_THAT(as_other_user([&] { return answer_to(port, get(path)); }), StartsWith("HTTP/1.1 403 ")) << path;
  }
  EXPECT_THAT(as_other_user([&] { return answer_to(port, get("/healthz")); }), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Http, ScrapersTokenReadsAndDoesNotJoin) {
  Job daemon({"--port=0", "--host=127.0.0.1", "--scrape-token-file=" + file_with(kScrapeToken)},
             daemon_options(kToken));
  const auto port = port_of(daemon);
  const auto from_elsewhere = [&](const std::string& token) {  // it names no loopback address
    return answer_to(port, get("/metrics", "Host: gpu17\r\nAuthorization: Bearer " + token + "\r\n"));
  };
  EXPECT_THAT(from_elsewhere(kScrapeToken), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\nddp_jobs 0\n")));
  EXPECT_THAT(from_elsewhere(kToken), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(from_elsewhere("another"), StartsWith("HTTP/1.1 401 "));
  Job::Options options;
  options.environment = {"DDPRUN_TOKEN=" + kScrapeToken};
  Job node({"--nproc-per-node=1", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job",
            "--rdzv-endpoint=127.0.0.1:" + std::to_string(port), "true"},
           options);
  EXPECT_EQ(node.wait(), 77);
  EXPECT_THAT(node.err(), HasSubstr("the endpoint has another token than this node"));
}

TEST_F(Http, ScrapersTokenMustNotLetNodesJoin) {
  Job daemon({"--port=0", "--scrape-token-file=" + file_with(kToken)}, daemon_options(kToken));
  EXPECT_EQ(daemon.wait(), 2);
  EXPECT_THAT(daemon.err(), AllOf(HasSubstr("error: the token for scrapers is one that lets nodes join\nwhere: "),
                                  HasSubstr("\ntry:   ")));
}

TEST_F(Http, MalformedRequestsAreAnsweredWith400) {
  Job daemon({"--port=0", "--host=127.0.0.1"}, daemon_options());
  const auto port = port_of(daemon);
  for (const auto& request : {get("/v1/jobs", "Host: localhost\r\nHost: evil.example\r\n"),
                              get("/v1/jobs", "Host: localhost:80@evil.example\r\n"), get("/v1/jobs", "Host\r\n"),
                              std::string("GET / HTTP/9.9\r\n\r\n"), std::string("EHLO evil.example\r\n\r\n"),
                              get("/" + std::string(9000, 'x'))})
    EXPECT_THAT(answer_to(port, request), StartsWith("HTTP/1.1 400 ")) << request.substr(0, 100);
}

const std::string kUpgrade =
    "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\n";

TEST_F(Http, AgentsNameOneWellFormedHost) {
  Job daemon({"--port=0", "--host=127.0.0.1"}, daemon_options());
  const auto port = port_of(daemon);
  for (const std::string hosts :
       {"Host: localhost\r\nHost: evil.example\r\n", "Host: user@localhost\r\n", "Host: localhost:80@evil.example\r\n",
        "Host: localhost:80x\r\n", "Host: local host\r\n", "Host: [::1\r\n", "Host: [::1]80\r\n",
        "Host: [localhost]\r\n", "Host: ::1\r\n", "Host: a/b\r\n"})
    EXPECT_THAT(answer_to(port, get("/v1/agents", hosts + kUpgrade)), StartsWith("HTTP/1.1 400 ")) << hosts;
  for (const std::string hosts : {"Host: localhost\r\n", "Host: node_1.cluster.:29400\r\n", "Host: 10.0.0.1\r\n",
                                  "Host: [::1]:29400\r\n", "Host: [fe80::1%eth0]:29400\r\n"}) {
    auto socket = store::RawSocket::connected(port);
    socket.send(get("/v1/agents", hosts + kUpgrade));
    EXPECT_THAT(socket.receive(12), StartsWith("HTTP/1.1 101")) << hosts;
  }
}

TEST_F(Http, MessageThatComesTogetherWithTheUpgradeIsRead) {
  Job daemon({"--port=0", "--host=127.0.0.1"}, daemon_options());
  const auto hello = hello_of('a').dump();
  const char length[] = {static_cast<char>(hello.size() >> 8), static_cast<char>(hello.size() & 0xff)};
  auto socket = store::RawSocket::connected(port_of(daemon));
  socket.send(get("/v1/agents", "Host: localhost\r\n" + kUpgrade) + "\x81\xfe" + std::string(length, 2) +
              std::string(4, '\0') + hello);
  EXPECT_THAT(socket.receive_until("\"is_spare\":false"),
              AllOf(StartsWith("HTTP/1.1 101"), EndsWith("\"is_spare\":false")));
}

}  // namespace
}  // namespace ddp::test
