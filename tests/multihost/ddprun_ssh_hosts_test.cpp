// A job that is started on several hosts from one, by ssh from host to host: hosts die, and connections break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/integration/sshd.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// node0 is where the person types; the sshd of every other host listens on all of its addresses.
class DdprunSshHosts : public Multihost {
 protected:
  Hosts* start(int count) {
    if (const auto why = Sshd::why_not(); !why.empty()) {
      [&] { GTEST_SKIP() << why; }();
      return nullptr;
    }
    auto* hosts = make_hosts({.count = count});
    if (hosts == nullptr) return nullptr;
    sshd_.emplace(Sshd::Options{.address = "0.0.0.0", .port = "22"}, false);
    for (int host = 1; host < count; ++host) {
      servers_.push_back(hosts->run(host, {"/bin/sh", "-c", "exec " + sshd_->command()}));
      EXPECT_TRUE(servers_.back().prints("Server listening")) << servers_.back().err();
    }
    return hosts;
  }

  std::vector<std::string> line(const std::string& script, const std::vector<std::string>& options) const {
    std::vector<std::string> out{built("ddprun"), sshd_->ssh_arguments()};
    out.insert(out.end(), options.begin(), options.end());
    out.insert(out.end(), {"sh", "-c", script});
    return out;
  }

  std::optional<Sshd> sshd_;
  std::vector<HostProcess> servers_;
};

TEST_F(DdprunSshHosts, RunOnTheHostItselfAndOnAnother) {
  auto* hosts = start(2);
  if (hosts == nullptr) return;
  auto job = hosts->run(0, line("echo rank $RANK at $MASTER_ADDR on $(uname -n)", {"--hosts=node0,node1"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("node0: [0] rank 0 at node0 on node0\n"));
  EXPECT_THAT(job.out(), HasSubstr("node1: [1] rank 1 at node0 on node1\n"));
}

TEST_F(DdprunSshHosts, JobEndsIfAHostDies) {
  auto* hosts = start(3);
  if (hosts == nullptr) return;
  auto job = hosts->run(0, line("echo up; " + kStay, {"--hosts=node1,node2"}));
  ASSERT_TRUE(job.prints("] up\n", 2)) << job.err();
  hosts->crash(2);
  EXPECT_EQ(job.wait(), 77) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the connection to host node2 is lost: "));
}

TEST_F(DdprunSshHosts, ElasticJobGoesOnWithoutAHostThatFallsSilent) {
  auto* hosts = start(3);
  if (hosts == nullptr) return;
  const std::string script = "echo up with $WORLD_SIZE; [ $WORLD_SIZE = 1 ] || " + kStay;
  auto job = hosts->run(
      0, line(script, {"--hosts=node1,node2", "--nnodes=1:2", "--max-restarts=2", "--rdzv-conf=last_call_timeout=1"}));
  ASSERT_TRUE(job.prints("up with 2\n", 2)) << job.err();
  hosts->cut(2);
  ASSERT_TRUE(job.prints("up with 1\n")) << job.err();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("node1: [0] up with 1\n"));
  EXPECT_THAT(job.err(), ContainsRegex("the connection to host node2 is lost: Timeout, server"));
}

}  // namespace
}  // namespace ddp::test
