#include "rendezvous/slurm/node_address.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/text.hpp"

namespace ddp::slurm {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kPatience = 60s;  // longer than any machine needs; only a failing test waits for it

constexpr const char* kOutput =
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 CPULoad=2.35 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) "
    "NodeAddr=10.1.2.3 NodeHostName=login Port=17001 Version=22.05.8 OS=Linux 6.1.0 #1 SMP RealMemory=1 State=IDLE "
    "Comment=was NodeAddr=10.9.9.9 \n";

TEST(SlurmNodeAddress, IsFoundInWhatScontrolPrints) {
  EXPECT_EQ(node_address_in(kOutput), "10.1.2.3");
  EXPECT_EQ(node_address_in("NodeName=n1 NodeAddr=gpu17.cluster\n"), "gpu17.cluster");
  EXPECT_FALSE(node_address_in("Node n1 not found\n"));
  EXPECT_FALSE(node_address_in("NodeName=n1 NodeAddr=(null) NodeHostName=n1\n"));
  EXPECT_FALSE(node_address_in("NodeName=n1 NodeAddr="));
  EXPECT_FALSE(node_address_in(""));
}

TEST(SlurmNodeAddress, OfManyNodesEachHasItsOwn) {
  EXPECT_THAT(node_addresses_in("NodeName=n1 A=b NodeAddr=10.0.0.1 Port=1\nNodeName=n2 NodeAddr=10.0.0.2\n"
                                "NodeName=n3 Port=1\nNode n4 not found\n NodeName=n5 NodeAddr=10.0.0.5"),
              ElementsAre(Pair("n1", "10.0.0.1"), Pair("n2", "10.0.0.2")));
  EXPECT_TRUE(node_addresses_in("").empty());
}

// A PATH on which only what the test says is called scontrol.
class SlurmNodeAddressOf : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    ::setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  void scontrol_is(const std::string& script) const {
    std::ofstream(folder_ / "scontrol") << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(folder_ / "scontrol", std::filesystem::perms::owner_all);
  }

  const std::string path_ = std::getenv("PATH");
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ddp_node_address_" + std::to_string(::getpid()));
};

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

TEST_F(SlurmNodeAddressOf, ANodeIsAsked) {
  scontrol_is("[ \"$*\" = '-o show node n1' ] && echo 'NodeName=n1 NodeAddr=10.1.2.3 Port=1'");
  const auto answer = ask_node_address("n1", kPatience);
  EXPECT_EQ(answer.address, "10.1.2.3");
  EXPECT_EQ(answer.error, "");
  EXPECT_FALSE(has_children());
}

TEST_F(SlurmNodeAddressOf, ManyNodesAreAskedAtOnce) {
  scontrol_is("for node in $(echo $4 | tr , ' '); do echo \"NodeName=$node NodeAddr=at-$node Port=1\"; done");
  EXPECT_THAT(ask_node_addresses({"n1", "n2"}, kPatience).of_node,
              ElementsAre(Pair("n1", "at-n1"), Pair("n2", "at-n2")));
  EXPECT_FALSE(has_children());
}

TEST_F(SlurmNodeAddressOf, ANodeThatSlurmDoesNotKnowIsAReason) {
  scontrol_is("echo 'Node n9 not found' >&2; exit 1");
  const auto answer = ask_node_address("n9", kPatience);
  EXPECT_EQ(answer.address, "");
  EXPECT_THAT(answer.error, HasSubstr("Node n9 not found"));
  EXPECT_THAT(answer.error, HasSubstr("`scontrol -o show node n9`"));
  EXPECT_THAT(ask_node_address("--help", kPatience).error, HasSubstr("no name of a node"));
}

TEST_F(SlurmNodeAddressOf, AMissingScontrolIsAReason) {
  ::setenv("PATH", folder_.c_str(), 1);
  EXPECT_THAT(ask_node_address("n1", kPatience).error, HasSubstr("No such file"));
}

TEST_F(SlurmNodeAddressOf, AScontrolThatHangsIsKilledAndReaped) {
  scontrol_is("trap '' TERM; echo $$ > " + (folder_ / "pid").string() + "; exec sleep 600");
  std::string pid;
  for (auto limit = 300ms; pid.empty() && limit < 60s; limit *= 2) {  // until the script has had the time to begin
    const auto answer = ask_node_address("n1", limit);
    EXPECT_THAT(answer.error, HasSubstr("has not answered within "));
    EXPECT_FALSE(has_children());
    pid = test::contents_of(folder_ / "pid");
  }
  ASSERT_NE(pid, "");
  EXPECT_NE(::kill(std::stoi(pid), 0), 0);
}

TEST_F(SlurmNodeAddressOf, AScontrolThatPrintsWithoutEndIsCutOff) {
  scontrol_is("exec yes");
  EXPECT_THAT(ask_node_address("n1", kPatience).error, HasSubstr("names no NodeAddr: y"));
  EXPECT_FALSE(has_children());
}

TEST_F(SlurmNodeAddressOf, AProgramThatReapsItsChildrenAtOnceIsNoneTheWorse) {
  scontrol_is("echo 'NodeName=n1 NodeAddr=10.1.2.3 Port=1'");
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(ask_node_address("n1", kPatience).address, "10.1.2.3");
  ::signal(SIGCHLD, before);
}

}  // namespace
}  // namespace ddp::slurm
