// What another user or an unknown peer can read, open or disturb.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/wire/channel.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/daemon.hpp"
#include "tests/security/raw_peer.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> member_of(const std::string& run_id, const std::string& port, const std::string& is_host) {
  return {"--nproc-per-node=1",
          "--nnodes=2",
          "--rdzv-backend=c10d",
          "--rdzv-endpoint=127.0.0.1:" + port,
          "--rdzv-id=" + run_id,
          "--rdzv-conf=is_host=" + is_host,
          "sh",
          "-c",
          kStay};
}

TEST(Exposure, JobsIdIsNotToldToWhoDoesNotKnowIt) {
  const auto port = free_port();
  Job host(member_of("hidden-7f3", port, "true"));
  ASSERT_TRUE(host.prints("waiting")) << host.err();
  Job stranger(member_of("guess", port, "false"));
  EXPECT_EQ(stranger.wait(), 77);
  EXPECT_THAT(stranger.out() + stranger.err(),
              AllOf(HasSubstr("the endpoint serves another job than 'guess'"), Not(HasSubstr("hidden-7f3"))));
  host.kill(SIGTERM);
  EXPECT_EQ(host.wait(), 143);
}

// "0100007F:7531", of a process: as /proc/net/tcp has them.
std::vector<std::string> listening_ends(pid_t pid) {
  std::set<std::string> sockets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
    sockets.insert(std::filesystem::read_symlink(entry.path(), error).string());
  std::vector<std::string> out;
  for (const auto* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 6; ++i) words >> inode;
      if (state == "0A" && sockets.count("socket:[" + inode + "]") != 0) out.push_back(local);
    }
  }
  return out;
}

TEST(Exposure, LoopbackEndpointListensOnLoopbackOnly) {
  const auto port = free_port();
  Job host(member_of("job", port, "true"));
  Job other(member_of("job", port, "false"));
  ASSERT_TRUE(host.prints("round 0")) << host.err();
  ASSERT_TRUE(other.prints("round 0")) << other.err();
  for (auto* node : {&host, &other}) {
    const auto ends = listening_ends(node->pid());
    EXPECT_THAT(ends, AllOf(Not(IsEmpty()), Each(StartsWith("0100007F:")))) << node->err();
  }
  host.kill(SIGTERM);
  other.kill(SIGTERM);
  EXPECT_EQ(host.wait(), 143);
  EXPECT_EQ(other.wait(), 143);
}

// Another user listens on ::1 at the port of an endpoint at localhost, whose ddprun listens on 127.0.0.1.
TEST(Exposure, ListenerOnTheOtherLoopbackAddressIsReachedByNobody) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give localhost both addresses";
  const auto port = free_port();
  const base::UniqueFd listener(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto here = base::socket_address(*base::parse_address("::1"), static_cast<std::uint16_t>(std::stoi(port)));
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&here), base::length_of(here)) != 0)
    GTEST_SKIP() << "this host has no ::1";
  ASSERT_EQ(::listen(listener.get(), 16), 0);
  char hosts[] = "/tmp/ddprun_hosts_XXXXXX";
  const base::UniqueFd file(::mkstemp(hosts));
  const std::string names = "127.0.0.1 localhost\n::1 localhost\n";
  ASSERT_EQ(::write(file.get(), names.data(), names.size()), static_cast<ssize_t>(names.size()));
  ::fchmod(file.get(), 0644);
  const auto node = [&] {
    Job::Options with_hosts;
    with_hosts.program = "/usr/bin/unshare";
    return std::make_unique<Job>(
        std::vector<std::string>{"--mount", "sh", "-c", R"(mount --bind "$0" /etc/hosts && exec "$@")", hosts,
                                 built("ddprun"), "--nproc-per-node=1", "--nnodes=2", "--rdzv-backend=c10d",
                                 "--rdzv-id=job", "--rdzv-endpoint=localhost:" + port, "sh", "-c",
                                 "echo the store is at $MASTER_ADDR"},
        with_hosts);
  };
  const auto one = node(), two = node();
  for (auto* each : {one.get(), two.get()}) {
    const int exit_code = each->wait();
    if (each->err().find("unshare: ") != std::string::npos) {
      std::filesystem::remove(hosts);
      GTEST_SKIP() << "this machine refuses namespaces";
    }
    EXPECT_EQ(exit_code, 0) << each->err();
    EXPECT_THAT(each->out(), HasSubstr("the store is at 127.0.0.1\n"));
  }
  std::filesystem::remove(hosts);
  pollfd waiting{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0) << "somebody has come to the listener on ::1";
}

TEST(Exposure, FolderThatSomebodyElseMadeDoesNotStopTheLogs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a folder of another user";
  char name[] = "/tmp/ddprun_exposure_XXXXXX";
  const std::string folder = ::mkdtemp(name);
  const auto usual = folder + "/ddprun_" + std::to_string(::geteuid());
  ASSERT_EQ(::mkdir(usual.c_str(), 0777), 0);
  ASSERT_EQ(::chown(usual.c_str(), 54'321, 54'321), 0);
  Job::Options options;
  options.environment = {"TMPDIR=" + folder};
  Job job({"--nproc-per-node=1", "--redirects=3", "--rdzv-id=job", "sh", "-c", "echo hello"}, options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(),
              HasSubstr("ddprun: " + usual + " is not this user's alone, so log files are in " + usual + "_"));
  EXPECT_TRUE(std::filesystem::is_empty(usual));
  std::filesystem::remove_all(folder);
}

// An endpoint that has one node open its store, to whatever it says.
TEST(Exposure, EndpointCannotOpenTheStoreOfANodeToEverybody) {
  using rendezvous::Channel;
  for (const std::string allow : {"any", "0.0.0.0/0", "::/0"}) {
    SCOPED_TRACE(allow);
    boost::asio::io_context io;
    boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    std::unique_ptr<Channel> channel;
    std::string heard;
    bool is_over = false;
    acceptor.async_accept([&](boost::system::error_code, boost::asio::ip::tcp::socket socket) {
      acceptor.close();  // so that the node, once it has hung up, finds nobody
      Channel::Handlers handlers;
      handlers.message = [&](std::string_view text) {
        heard += text;
        if (heard.size() != text.size()) return;
        channel->send(R"({"type": "welcome", "job_time_ms": 0, "is_spare": false})");
        channel->send(R"({"type": "open_store", "round": "100-0000000000000007-0", "is_last": true, "allow": [")" +
                      allow + "\"]}");
      };
      handlers.closed = [&](const Channel::Closed&) { is_over = true; };
      channel = std::make_unique<Channel>(io, base::UniqueFd(socket.release()), Channel::Side::server,
                                          Channel::Options(), std::move(handlers));
    });
    Job node(member_of("job", std::to_string(acceptor.local_endpoint().port()), "false,join_timeout=8"));
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!is_over && io.run_one_until(deadline) == 1) {
    }
    EXPECT_EQ(node.wait(), 77) << node.err();
    EXPECT_THAT(heard, AllOf(HasSubstr("\"hello\""), Not(HasSubstr("store_opened"))));
  }
}

TEST(Exposure, EndpointCannotFillTheMemoryOfANodeWithAddresses) {
  auto endpoint = RawPeer::endpoint();
  Job node(member_of("job", std::to_string(endpoint.port()), "false"));
  ASSERT_TRUE(endpoint.hear("hello")) << node.err();
  endpoint.say(json_of(rendezvous::ToAgent(rendezvous::Welcome{})).dump());
  rendezvous::OpenStore open;
  open.round = {100, 7, 0};
  open.is_last = false;
  for (std::size_t i = 0; i <= rendezvous::kRoundAddressesMax / rendezvous::kAddressesMax; ++i) {
    open.allow.clear();
    for (std::size_t last = 0; last < rendezvous::kAddressesMax; ++last)
      open.allow.push_back("10." + std::to_string(i / 256) + "." + std::to_string(i % 256) + "." +
                           std::to_string(last));
    endpoint.say(json_of(rendezvous::ToAgent(open)).dump());
  }
  EXPECT_EQ(node.wait(), 77);
  EXPECT_THAT(node.err(), HasSubstr("the endpoint wants the store to be open to more than the addresses of nodes"));
}

// A member that says that a rank of another node has failed.
TEST(FailuresOfOthers, AreNamedByTheRanksOfTheirNode) {
  Daemon daemon;
  HostileMember attacker(daemon);
  Job node(daemon.node("2", "echo up; " + kStay));
  ASSERT_TRUE(attacker.opens_store()) << daemon.err();
  ASSERT_TRUE(node.prints("up\n")) << node.err();
  auto ended = attacker.failed_round();
  ended.failures.back().rank = 1;  // the other node's
  attacker.peer().say(json_of(rendezvous::ToMembership(ended)).dump());
  EXPECT_EQ(node.wait(), 3);
  EXPECT_THAT(node.err(), AllOf(HasSubstr("error: rank 0 ended with exit code 3"), Not(HasSubstr("rank 1 ended"))));
}

}  // namespace
}  // namespace ddp::test
