#include "launcher/remote/job_on_hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OnHosts : public AMachine {
 protected:
  std::optional<JobOnHosts> read(std::vector<std::string> arguments) const {
    if (with_program) arguments.insert(arguments.end(), {"train.py", "--lr=1"});
    Machine machine;
    machine.find_tokens = [this](const std::optional<std::string>& file) {
      token_looked_for_at.push_back(file);
      return token;
    };
    machine.read_file = [this](const std::string& path) {
      const auto found = texts.find(path);
      return found == texts.end() ? std::nullopt : std::optional(found->second);
    };
    return job_on_hosts(arguments, lookup(), entries, machine, [] { return std::string(32, 'k'); });
  }

  JobOnHosts job(const std::vector<std::string>& arguments) const {
    auto out = read(arguments);
    return out ? *out : JobOnHosts{};
  }

  bool with_program = true;
  std::vector<std::string> entries{"NCCL_DEBUG=INFO", "NCCL_IB=0", "HOME=/root"};
};

TEST_F(OnHosts, EachHostHasItsNodeRankAndItsWorkers) {
  const auto both = job({"--hosts=a,b:2", "--nproc-per-node=4", "--max-restarts", "3"});
  EXPECT_THAT(both.arguments_of(0, "10.0.0.1"),
              AllOf(Contains("--nnodes=2"), Contains("--node-rank=0"), Contains("--master-addr=10.0.0.1"),
                    Contains("--nproc-per-node=4"), Contains("--max-restarts=3"), Contains("--rdzv-id=hosts_kkkkkkkk"),
                    Contains("--log-line-prefix-template=[${rank}] ")));
  const auto second = both.arguments_of(1, "10.0.0.1");
  EXPECT_THAT(second, AllOf(Contains("--node-rank=1"), Contains("--nproc-per-node=2"),
                            Not(Contains("--nproc-per-node=4")), Not(Contains(HasSubstr("--hosts")))));
  EXPECT_THAT(std::vector<std::string>(second.end() - 3, second.end()), ElementsAre("--", "train.py", "--lr=1"));
  EXPECT_EQ(both.nodes_min, 2);
}

TEST_F(OnHosts, OptionsAboutTheRunGoToTheHosts) {
  const auto both = job({"--hosts=a,b", "--wdir=only/there", "--timeout=60", "-q"});
  EXPECT_TRUE(both.is_quiet);
  EXPECT_FALSE(job({"--hosts=a,b"}).is_quiet);
  for (const std::size_t host : {0U, 1U})
    EXPECT_THAT(both.arguments_of(host, "a"),
                AllOf(Contains("--wdir=only/there"), Contains("--timeout=60"), Contains("--quiet")));
}

TEST_F(OnHosts, RangeOfNodesMeetsAsWithC10d) {
  const auto elastic = job({"--hosts=a,b,c", "--nnodes=2:3"});
  EXPECT_EQ(elastic.nodes_min, 2);
  EXPECT_THAT(elastic.arguments_of(2, "fe80::1"),
              AllOf(Contains("--nnodes=2:3"), Contains("--rdzv-backend=c10d"),
                    Contains("--rdzv-endpoint=[fe80::1]:29400"), Contains("--node-rank=2")));
}

TEST_F(OnHosts, EndpointOfTheUserIsKept) {
  EXPECT_THAT(
      job({"--hosts=a,b", "--master-addr=10.9.9.9", "--master-port=5000"}).arguments_of(1, "a"),
      AllOf(Contains("--master-addr=10.9.9.9"), Contains("--master-port=5000"), Not(Contains("--master-addr=a"))));
}

TEST_F(OnHosts, OneHostNeedsNoEndpointAndNoToken) {
  const auto one = job({"--hosts=a:2"});
  EXPECT_THAT(one.arguments_of(0, "a"), AllOf(Contains("--standalone"), Not(Contains(HasSubstr("--nnodes")))));
  EXPECT_EQ(one.token, "");
}

TEST_F(OnHosts, TokenIsMadeForTheJobAndIsNoArgument) {
  const auto made = job({"--hosts=a,b"});
  EXPECT_EQ(made.token, std::string(64, 'k'));
  EXPECT_THAT(token_looked_for_at, IsEmpty()) << "the user's usual token stays on this machine";
  const auto given = job({"--hosts=a,b", "--token-file=t"});
  EXPECT_EQ(given.token, "secret_of_a_test");
  EXPECT_THAT(token_looked_for_at, ElementsAre("t"));
  for (const auto& argument : given.arguments_of(0, "a")) EXPECT_THAT(argument, Not(HasSubstr("token")));
}

TEST_F(OnHosts, EndpointMayBeADaemonThatHasTheUsersToken) {
  EXPECT_EQ(job({"--hosts=a,b", "--rdzv-backend=c10d", "--rdzv-endpoint=daemon"}).token, "secret_of_a_test");
}

TEST_F(OnHosts, VariablesAreNamedOneByOneOrByTheirStart) {
  EXPECT_THAT(job({"--hosts=a", "-x", "NCCL_*", "-xNEW=a b", "--export=HOME"}).variables,
              ElementsAre("NCCL_DEBUG=INFO", "NCCL_IB=0", "NEW=a b", "HOME=/root"));
  expect_usage_error([&] { read({"--hosts=a", "-x", "GONE"}); }, "no environment variable GONE", "-x GONE", "-x GONE=");
  expect_usage_error([&] { read({"--hosts=a", "-x", "A-B=1"}); }, "'A-B' is no name", "-x A-B=1", "-x NAME");
}

TEST_F(OnHosts, VariablesThatALauncherReadsStayHere) {
  entries = {"DDPRUN_HOSTS=a", "PET_TEE=3", "SLURM_STEP_ID=0", "OTHER=1"};
  EXPECT_THAT(job({"--hosts=a", "-x", "*"}).variables, ElementsAre("OTHER=1"));
  expect_usage_error(
      [&] {
        read({"--hosts=a", "-x", "PET_TEE"});
      },
      "PET_TEE gives options to ddprun", "-x PET_TEE", "the option itself");
}

TEST_F(OnHosts, HostsComeFromAFileToo) {
  texts["machines"] = "a slots=3\nb\n";
  const auto from_file = job({"--hostfile", "machines"});
  ASSERT_EQ(from_file.hosts.size(), 2u);
  EXPECT_EQ(from_file.hosts[0].workers, 3);
  expect_usage_error([&] { read({"--hostfile=gone"}); }, "gone can't be read", "--hostfile=gone", "path");
}

TEST_F(OnHosts, EnvironmentGivesDefaultsAndTheCommandLineGoesBefore) {
  environment["DDPRUN_HOSTS"] = "x,y";
  EXPECT_EQ(job({}).hosts.size(), 2u);
  texts["machines"] = "a";
  EXPECT_EQ(job({"--hostfile=machines"}).hosts.size(), 1u);
  environment["DDPRUN_HOSTS"] = "";
  EXPECT_FALSE(read({}));
}

TEST_F(OnHosts, WrongUseIsToldBeforeAnythingStarts) {
  const struct {
    std::vector<std::string> line;
    const char *says, *where, *remedy;
  } cases[] = {
      {{"--hosts=a", "--hostfile=f"}, "exclude each other", "--hosts=a and --hostfile=f", "drop one"},
      {{"--hosts=a,b", "--nnodes=3"}, "--nnodes=3, but there are 2 hosts", "--nnodes=3", "drop it"},
      {{"--hosts=a,b", "--node-rank=1"}, "--node-rank is for a ddprun of one node", "--node-rank=1", "first"},
      {{"--hosts=a,b", "--local-addr=c"}, "--local-addr is for a ddprun of one node", "--local-addr=c", "drop it"},
      {{"--hosts=a,b", "--standalone"}, "--standalone is one node", "--standalone", "drop it"},
      {{"--hosts=a", "--ssh-args=-i 'k"}, "a quote is not closed", "--ssh-args", "--ssh-args="},
      {{"--hosts=a", "--tee=9"}, "--tee", "--tee=9", "3"},
      {{"-x", "HOME"}, "--export needs --hosts", "-x HOME", "--hosts="},
      {{"--ssh-args=-p 1"}, "--ssh-args needs --hosts", "--ssh-args=-p 1", "--hosts="},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.line));
    expect_usage_error([&] { read(c.line); }, c.says, c.where, c.remedy);
  }
}

TEST_F(OnHosts, ProgramIsNeeded) {
  with_program = false;
  expect_usage_error([&] { read({"--hosts=a"}); }, "no program given", "command line", "ddprun");
}

TEST_F(OnHosts, WithoutHostsNothingChanges) {
  EXPECT_FALSE(read({"--nproc-per-node=2"}));
  EXPECT_FALSE(read({"--hosts=a", "--help"}));
}

}  // namespace
}  // namespace ddp::launcher
