// Nodes of one job, each a ddprun of its own on this host, with the variables that srun would have set for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Task {
  int job = 0, node = 0, nodes = 2;
  std::string list = "localhost,second";
  int tasks_per_node = 1;
};

std::vector<std::string> variables_of(const Task& task) {
  const auto is = [](const char* name, int value) { return std::string(name) + "=" + std::to_string(value); };
  return {is("SLURM_JOB_ID", task.job),
          "SLURM_STEP_ID=0",
          "SLURM_STEP_NODELIST=" + task.list,
          is("SLURM_STEP_NUM_NODES", task.nodes),
          is("SLURM_STEP_NUM_TASKS", task.nodes * task.tasks_per_node),
          "SLURM_STEP_TASKS_PER_NODE=" + std::to_string(task.tasks_per_node) + "(x" + std::to_string(task.nodes) + ")",
          is("SLURM_NODEID", task.node),
          is("SLURM_PROCID", task.node * task.tasks_per_node),
          "SLURM_LOCALID=0",
          "SLURM_CONF=/nonexistent"};
}

const std::string kShowStep =
    "echo node $GROUP_RANK of $GROUP_WORLD_SIZE rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT id "
    "$TORCHELASTIC_RUN_ID step $DDPRUN_SLURM_STEP";

std::unique_ptr<Job> start(const Task& task, const std::string& script, std::vector<std::string> options = {},
                           const std::vector<std::string>& environment = {}) {
  Job::Options how;
  how.environment = variables_of(task);
  how.environment.insert(how.environment.end(), environment.begin(), environment.end());
  options.insert(options.end(), {"sh", "-c", script});
  return std::make_unique<Job>(options, how);
}

// A process that has a port and answers whoever comes with these bytes, once something was said.
class Stranger {
 public:
  Stranger(int port, std::string answer) {
    std::uint16_t number = 0;
    const auto socket = bound_socket(static_cast<std::uint16_t>(port), number);
    EXPECT_EQ(number, port);
    EXPECT_EQ(::listen(socket.get(), 8), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char bytes[4096];
    while (true) {
      const int peer = ::accept(socket.get(), nullptr, nullptr);
      if (::recv(peer, bytes, sizeof bytes, 0) > 0) ::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Stranger(const Stranger&) = delete;

 private:
  pid_t pid_ = -1;
};

TEST(DdprunStep, NodesMeetWithoutAnyOption) {
  const int job = free_job();
  const auto one = start({job, 1}, kShowStep), zero = start({job, 0}, kShowStep);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  const auto rest = " at 127.0.0.1:" + std::to_string(first_port_of(job)) + " id " + std::to_string(job) + ".0 step " +
                    std::to_string(job) + ".0\n";
  EXPECT_EQ(zero->out(), "node 0 of 2 rank 0 of 2" + rest);
  EXPECT_EQ(one->out(), "node 1 of 2 rank 1 of 2" + rest);
}

TEST(DdprunStep, TwoJobsWithTheSamePortsAreKeptApart) {
  const int job = free_job(), other = job + kPortGroups, first = first_port_of(job);
  const auto zero = start({job, 0}, kShowStep);
  ASSERT_TRUE(zero->prints("waiting"));
  const auto other_one = start({other, 1}, kShowStep);  // meets the first job before its own
  const auto other_zero = start({other, 0}, kShowStep);
  EXPECT_EQ(other_zero->wait(), 0) << other_zero->err();
  EXPECT_EQ(other_one->wait(), 0) << other_one->err();
  EXPECT_THAT(other_one->out(), AllOf(HasSubstr("rank 1 of 2 at 127.0.0.1:" + std::to_string(first + 1)),
                                      HasSubstr("id " + std::to_string(other) + ".0")));
  EXPECT_THAT(zero->err(), Not(HasSubstr(std::to_string(other)))) << "it is none of the first job's business";
  const auto one = start({job, 1}, kShowStep);
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_THAT(one->out(), HasSubstr("rank 1 of 2 at 127.0.0.1:" + std::to_string(first) + " id"));
}

TEST(DdprunStep, AnotherJobWithAnotherTokenIsPassedBy_AndTheReasonIsTold) {
  const int job = free_job(), other = job + kPortGroups, first = first_port_of(job);
  const auto zero = start({job, 0}, kShowStep, {}, {"DDPRUN_TOKEN=one_one_one_one_"});
  ASSERT_TRUE(zero->prints("waiting"));
  for (const std::string token : {"DDPRUN_TOKEN=two_two_two_two_", "HOME=/nonexistent"}) {  // another one, or none
    SCOPED_TRACE(token);
    const auto alone = start({other, 1}, kShowStep, {"--rdzv-conf=join_timeout=5"}, {token});
    EXPECT_EQ(alone->wait(), 77);
    EXPECT_THAT(alone->err(), AllOf(HasSubstr("port " + std::to_string(first) + ": "), HasSubstr("token"),
                                    HasSubstr("\ntry:   the same token on all nodes")));
  }
  // Where that does not change it is of no use to wait on.
  const auto alone = start({other, 1}, kShowStep, {"--rdzv-conf=join_timeout=16"}, {"HOME=/nonexistent"});
  EXPECT_EQ(alone->wait(), 77);
  EXPECT_THAT(alone->err(), AllOf(Not(HasSubstr("within 16 s")),
                                  HasSubstr("error: port " + std::to_string(first) + ": the endpoint asks for a token"),
                                  HasSubstr("\ntry:   the same token on all nodes")));
  const auto other_one = start({other, 1}, kShowStep, {}, {"DDPRUN_TOKEN=two_two_two_two_"});
  const auto other_zero = start({other, 0}, kShowStep, {}, {"DDPRUN_TOKEN=two_two_two_two_"});
  EXPECT_EQ(other_zero->wait(), 0) << other_zero->err();
  EXPECT_EQ(other_one->wait(), 0) << other_one->err();
  EXPECT_THAT(other_one->out(), HasSubstr("rank 1 of 2 at 127.0.0.1:" + std::to_string(first + 1)));
}

TEST(DdprunStep, PortsThatOthersHaveArePassedBy) {
  const int job = free_job(), first = first_port_of(job);
  std::uint16_t silent_port = 0;
  const auto silent = bound_socket(static_cast<std::uint16_t>(first), silent_port);  // never accepts
  ASSERT_EQ(silent_port, first);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  const Stranger web(first + 1, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), garbage(first + 2, "\xff\xff\xff"),
      mute(first + 3, "");
  Job::Options serves;
  serves.program = "ddp-rendezvous";
  Job daemon({"--port", std::to_string(first + 4)}, serves);  // would take in any job
  ASSERT_TRUE(daemon.prints("listens on"));
  const auto one = start({job, 1}, kShowStep), zero = start({job, 0}, kShowStep);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(one->out(), HasSubstr("rank 1 of 2 at 127.0.0.1:" + std::to_string(first + 5)));
}

TEST(DdprunStep, WhereNobodyServesTheJobEachPortsReasonIsTold) {
  const int job = free_job(), first = first_port_of(job);
  const Stranger web(first, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  const auto other = start({job + kPortGroups, 0}, "true");
  ASSERT_TRUE(other->prints("waiting"));
  const auto one = start({job, 1}, "true", {"--rdzv-conf=join_timeout=6"});
  EXPECT_EQ(one->wait(), 77);
  const auto range = std::to_string(first) + "-" + std::to_string(first + 7);
  EXPECT_THAT(
      one->err(),
      AllOf(HasSubstr("no answer from localhost:" + range + " yet: "),
            HasSubstr("error: no answer from ddprun at localhost:" + range + " within 6 s"),
            HasSubstr("port " + std::to_string(first) + ": what answers there is no ddprun (it speaks HTTP)"),
            HasSubstr("port " + std::to_string(first + 1) + ": the endpoint serves another job than '" +
                      std::to_string(job) + ".0'"),
            HasSubstr("ports " + std::to_string(first + 2) + "-" + std::to_string(first + 7) + ": Connection refused"),
            HasSubstr("\ntry:   look at the output of ddprun on localhost")));
}

TEST(DdprunStep, WhereAllPortsAreTakenItIsTold) {
  const int job = free_job(), first = first_port_of(job);
  std::vector<base::UniqueFd> holders;
  for (int i = 0; i < kPortsOfStep; ++i) {
    std::uint16_t number = 0;
    holders.push_back(bound_socket(static_cast<std::uint16_t>(first + i), number));
    ASSERT_EQ(::listen(holders.back().get(), 8), 0);
  }
  const auto zero = start({job, 0}, "true");
  EXPECT_EQ(zero->wait(), 77);
  EXPECT_THAT(zero->err(), AllOf(HasSubstr("error: can't listen on"),
                                 HasSubstr(") has " + std::to_string(first) + "-" + std::to_string(first + 7)),
                                 HasSubstr("\ntry:   `--rdzv-backend=c10d --rdzv-endpoint=localhost:PORT`")));
}

TEST(DdprunStep, ADaemonOnTheFirstNodeServesTheJobs) {
  const int job = free_job();
  const auto port = free_port();
  Job::Options serves;
  serves.program = "ddp-rendezvous";
  Job daemon({"--port", port}, serves);
  ASSERT_TRUE(daemon.prints("listens on"));
  const std::vector<std::string> there{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:" + port};
  const auto zero = start({job, 0}, kShowStep, there), one = start({job, 1}, kShowStep, there);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(zero->out(), HasSubstr("node 0 of 2 rank 0 of 2"));
  EXPECT_THAT(one->out(), HasSubstr("node 1 of 2 rank 1 of 2"));
  EXPECT_TRUE(daemon.prints(" job=" + std::to_string(job) + ".0 ")) << daemon.err();
}

// --- names that do not resolve ---

class DdprunStepNames : public ::testing::Test {
 protected:
  void write_scontrol(const std::string& body) const {
    const auto path = scratch.path() / "scontrol";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  // Nodes of names that never resolve (RFC 6761).
  std::unique_ptr<Job> start_node(int node, std::vector<std::string> options = {}) const {
    return start({job, node, 2, "first.invalid,second.invalid"}, kShowStep, std::move(options),
                 {"PATH=" + scratch.path().string() + ":" + std::getenv("PATH")});
  }

  ScratchDirectory scratch;
  const int job = free_job();
};

TEST_F(DdprunStepNames, SlurmIsAskedForTheAddress_OnceByEachNode) {
  const auto asked = scratch.path() / "asked";
  write_scontrol("echo \"$*\" >> " + asked.string() +
                 "\necho \"NodeName=$4 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=$4\"");
  const auto one = start_node(1);
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(asked); }));
  const auto zero = start_node(0);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  for (const auto* node : {zero.get(), one.get()})
    EXPECT_THAT(node->out(), HasSubstr(" at 127.0.0.1:" + std::to_string(first_port_of(job))))
        << "the name would help no worker";
  EXPECT_EQ(contents_of(asked), "-o show node first.invalid\n-o show node first.invalid\n");
}

TEST_F(DdprunStepNames, AnEndpointThatIsGivenByNameIsLookedUpTheSameWay) {
  write_scontrol("echo \"NodeName=$4 NodeAddr=127.0.0.1 NodeHostName=$4\"");
  const auto port = free_port();
  const std::vector<std::string> classic{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=7",
                                         "--rdzv-endpoint=first.invalid:" + port};
  const auto one = start_node(1, classic), zero = start_node(0, classic);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(one->out(), HasSubstr("node 1 of 2 rank 1 of 2 at 127.0.0.1:" + port + " id 7"));
}

TEST_F(DdprunStepNames, ASlowAnswerIsWaitedForOnce_WhileTheFirstNodeServes) {
  const auto asked = scratch.path() / "asked";
  write_scontrol("echo asked >> " + asked.string() + "; sleep 6; echo answered >> " + asked.string() +
                 "\necho \"NodeName=$4 NodeAddr=127.0.0.1 NodeHostName=$4\"");
  const auto zero = start_node(0);
  ASSERT_TRUE(zero->prints("waiting")) << zero->err();
  EXPECT_THAT(contents_of(asked), Not(HasSubstr("answered"))) << "others can come meanwhile";
  const auto one = start_node(1);
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  for (const auto* node : {zero.get(), one.get()})
    EXPECT_THAT(node->out(), HasSubstr(" at 127.0.0.1:" + std::to_string(first_port_of(job))));
  EXPECT_EQ(occurrences(contents_of(asked), "asked"), 2);
}

TEST_F(DdprunStepNames, WhereNobodyKnowsTheNameTheFirstNodesWorkersGetAnAddressOfTheirOwnHost) {
  write_scontrol("exit 1");
  const auto zero = start({job, 0, 1, "first.invalid"}, kShowStep,
                          {"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=first.invalid:" + free_port()},
                          {"PATH=" + scratch.path().string() + ":" + std::getenv("PATH")});
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_THAT(zero->out(), AllOf(HasSubstr("rank 0 of 1 at "), Not(HasSubstr("invalid"))));
  EXPECT_THAT(zero->err(), HasSubstr("the name first.invalid can't be resolved"));
}

TEST_F(DdprunStepNames, SlurmIsNotAskedAgainAtOnceWhereItKnowsNothing) {
  const auto asked = scratch.path() / "asked";
  write_scontrol("echo asked >> " + asked.string() + "; exit 1");
  const auto one = start_node(1, {"--rdzv-conf=join_timeout=6"});
  EXPECT_EQ(one->wait(), 77);
  EXPECT_EQ(contents_of(asked), "asked\n");
  EXPECT_THAT(one->err(), HasSubstr("scontrol -o show node first.invalid"));
}

TEST_F(DdprunStepNames, WhatSlurmAnswersInsteadIsTold) {
  write_scontrol("echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1");
  const auto one = start_node(1, {"--rdzv-conf=join_timeout=5"});
  EXPECT_EQ(one->wait(), 77);
  EXPECT_THAT(one->err(),
              AllOf(HasSubstr("the name first.invalid can't be resolved"),
                    HasSubstr("Unable to contact slurm controller"), HasSubstr("getent hosts first.invalid")));
}

// --- what does not fit, and what is inside ---

TEST(DdprunStep, WhatDoesNotFitIsWrongUse) {
  const struct {
    const char* what;
    Task task;
    std::vector<std::string> environment;
    const char* says;
  } cases[] = {{"a node list of another length", {7, 1, 3}, {}, "SLURM_STEP_NODELIST is 'localhost,second', 2 nodes"},
               {"several ddprun on a node",
                {7, 1, 2, "localhost,second", 8},
                {},
                "srun started 16 ddprun on 2 nodes, 8 of them here"},
               {"torchrun's node rank", {7, 1}, {"PET_NODE_RANK=0"}, "PET_NODE_RANK=0 says that this is node 0"},
               {"a heterogeneous job", {7, 1}, {"SLURM_HET_SIZE=2"}, "heterogeneous job"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto node = start(c.task, "true", {}, c.environment);
    EXPECT_EQ(node->wait(), 2);
    EXPECT_THAT(node->err(),
                AllOf(HasSubstr("error: "), HasSubstr(c.says), HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
  }
}

TEST(DdprunStep, ADdprunInAWorkerIsAJobOfItsOwn) {
  const int job = free_job();
  const auto inner =
      built("ddprun") + " --nproc-per-node=2 sh -c 'echo inner $RANK of $WORLD_SIZE step $DDPRUN_SLURM_STEP'";
  const auto one = start({job, 1}, inner), zero = start({job, 0}, inner);
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  for (const auto* node : {zero.get(), one.get()}) {
    EXPECT_THAT(node->out(), HasSubstr("inner 1 of 2 step " + std::to_string(job) + ".0\n"));
    EXPECT_THAT(node->err(), HasSubstr("SLURM_* are those of the ddprun of step"));
  }
}

}  // namespace
}  // namespace ddp::test
