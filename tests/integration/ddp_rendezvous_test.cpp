#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/host_name.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/store/client.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class StoreProgram : public Job {
 public:
  explicit StoreProgram(std::vector<std::string> options = {}) : Job(with_store(std::move(options)), program()) {}

  static Options program() {
    Options options;
    options.program = "ddp-rendezvous";
    return options;
  }
  store::Client client() {
    const auto port = static_cast<std::uint16_t>(number_after("listens on port "));
    return store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = patience()});
  }
  static store::TimePoint patience() { return std::chrono::steady_clock::now() + kPatience; }

 private:
  static std::vector<std::string> with_store(std::vector<std::string> options) {
    options.insert(options.begin(), {"store", "--port", "0"});
    return options;
  }
};

TEST(DdpRendezvous, StoreServesClientsUntilASignalEndsIt) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    SCOPED_TRACE(number);
    StoreProgram program;
    auto first = program.client(), second = program.client();
    first.set("key", "value", StoreProgram::patience());
    EXPECT_EQ(second.get("key", StoreProgram::patience()), "value");
    program.kill(number);
    EXPECT_EQ(program.wait(), 1000 + number);  // as the signal itself would end it
    EXPECT_THAT(program.out(), MatchesRegex("ddp-rendezvous: the store listens on port [0-9]+ of all addresses\n"));
    EXPECT_EQ(program.err(), "");
  }
}

TEST(DdpRendezvous, ListensWhereItIsTold) {
  StoreProgram program({"--host", "127.0.0.1,127.0.0.2", "--store-allow=10.0.0.0/8,any"});
  program.client().set("key", "value", StoreProgram::patience());
  program.kill(SIGTERM);
  EXPECT_EQ(program.wait(), 1000 + SIGTERM);
  EXPECT_THAT(program.out(), HasSubstr(" of 127.0.0.1, 127.0.0.2\n"));
}

TEST(DdpRendezvous, ReaderOfItsOutputMayLeave) {
  StoreProgram program;
  auto client = program.client();
  program.close_stdout();
  client.set("key", "value", StoreProgram::patience());
  EXPECT_EQ(client.get("key", StoreProgram::patience()), "value");
}

TEST(DdpRendezvous, TakenPortIsAnErrorInThreeParts) {
  StoreProgram program({"--host", "127.0.0.1"});
  const auto port = std::to_string(program.number_after("listens on port "));
  Job second({"store", "--host=127.0.0.1", "--port", port}, StoreProgram::program());
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.err(), AllOf(HasSubstr("error: can't listen on 127.0.0.1:" + port + ": Address already in use"),
                                  HasSubstr("\nwhere: starting"), HasSubstr("\ntry:   ")));
}

// The membership of jobs, on a free port.
class Daemon : public Job {
 public:
  explicit Daemon(std::uint16_t port = 0) : Job({"--port", std::to_string(port)}, StoreProgram::program()) {}

  std::uint16_t port() { return static_cast<std::uint16_t>(number_after("membership listens on port ")); }

  // ddprun's arguments for a node of a job that meets here.
  std::vector<std::string> node(const std::string& run_id, const std::string& nodes, const std::string& script) {
    return {"--nproc-per-node=2",
            "--nnodes=" + nodes,
            "--rdzv-backend=c10d",
            "--rdzv-id=" + run_id,
            "--rdzv-endpoint=127.0.0.1:" + std::to_string(port()),
            "--rdzv-conf=last_call_timeout=1",
            "sh",
            "-c",
            script};
  }

  std::string answer_to(const std::string& request) {
    const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port());
    const timeval limit{kPatience.count(), 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return "no connection";
    ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    std::string out;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;)
      out.append(bytes, static_cast<std::size_t>(count));
    return out;
  }
};

TEST(DdpRendezvousJobs, AreManyAtOnceAndComeAgainUnderTheirNames) {
  Daemon daemon;
  for (int run = 0; run < 2; ++run) {
    SCOPED_TRACE(run);
    std::vector<std::unique_ptr<Job>> nodes;
    for (const auto& [run_id, count] : {std::pair{"a", 2}, {"b", 3}})
      for (int i = 0; i < count; ++i)
        nodes.push_back(std::make_unique<Job>(
            daemon.node(run_id, std::to_string(count), "echo $TORCHELASTIC_RUN_ID: $RANK of $WORLD_SIZE")));
    std::string all;
    for (const auto& node : nodes) {
      EXPECT_EQ(node->wait(), 0) << node->err() << daemon.err();
      all += node->out();
    }
    for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(all, HasSubstr("a: " + std::to_string(rank) + " of 4\n"));
    for (int rank = 0; rank < 6; ++rank) EXPECT_THAT(all, HasSubstr("b: " + std::to_string(rank) + " of 6\n"));
  }
}

TEST(DdpRendezvousJobs, GoOnWithoutAnyOfTheirNodes) {
  Daemon daemon;
  const auto script = "echo $RANK of $WORLD_SIZE; " + kStay;
  Job first(daemon.node("job", "1:2", script)), second(daemon.node("job", "1:2", script));
  ASSERT_TRUE(first.prints("of 4", 3)) << first.err();  // two workers and ddprun
  ASSERT_TRUE(second.prints("of 4", 3)) << second.err();
  auto& zero = first.out().find("0 of 4") != std::string::npos ? first : second;
  auto& other = &zero == &first ? second : first;
  zero.kill(SIGKILL);
  ASSERT_TRUE(other.prints("0 of 2")) << other.err();
  EXPECT_TRUE(daemon.prints(" job=job text=\"node 0 (host ")) << daemon.err();
  other.kill(SIGTERM);
  EXPECT_EQ(other.wait(), 143);
  EXPECT_TRUE(zero.is_gone_within());
}

TEST(DdpRendezvousJobs, OutliveTheDaemonAndComeBackToTheNextOne) {
  const auto port = static_cast<std::uint16_t>(std::stoi(free_port()));  // nobody takes it while the daemon is away
  auto daemon = std::make_unique<Daemon>(port);
  auto arguments = daemon->node("job", "2", "echo worker $$ of round ${DDPRUN_ROUND_ID##*-}; " + kStay);
  arguments.insert(arguments.begin(), "--max-restarts=1");
  Job first(arguments), second(arguments);
  const std::vector<Job*> members{&first, &second};
  for (auto* node : members) ASSERT_TRUE(node->prints("of round 0", 2)) << node->err();
  Job spare(arguments);
  ASSERT_TRUE(becomes_true([&] {
    const auto jobs = daemon->answer_to("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return jobs.find("\"group_rank\": null") != std::string::npos;
  }));
  const auto worker = static_cast<pid_t>(members[0]->number_after("worker "));
  daemon->kill(SIGKILL);
  daemon->wait();
  for (auto* node : {&first, &second, &spare}) ASSERT_TRUE(node->prints("it is tried again")) << node->err();
  daemon = std::make_unique<Daemon>(port);
  for (auto* node : {&first, &second, &spare}) ASSERT_TRUE(node->prints("connected to the job again")) << node->err();
  for (auto* node : members) EXPECT_EQ(node->out().find("of round 1"), std::string::npos);
  EXPECT_EQ(spare.out(), "") << "a spare begins no job of its own";
  EXPECT_NE(process_state(worker), 0);
  ::kill(worker, SIGKILL);
  for (auto* node : members) ASSERT_TRUE(node->prints("of round 1", 2)) << node->err() << daemon->err();
  members[0]->kill(SIGINT);  // the spare could take its place otherwise
  for (auto* node : members) EXPECT_EQ(node->wait(), 130) << node->err();
}

// One restart per 3 s: the next daemon must know that the last one was longer ago.
TEST(DdpRendezvousJobs, TellTheNextDaemonHowLongAgoTheirRestartsWere) {
  const auto port = static_cast<std::uint16_t>(std::stoi(free_port()));
  auto daemon = std::make_unique<Daemon>(port);
  auto arguments = daemon->node("job", "2",
                                "round=${DDPRUN_ROUND_ID##*-}; case $round in 0) exit 3;; 1) sleep 3.5; exit 3;; "
                                "2) sleep 3.5; echo old worker $$;; *) echo of round $round;; esac; " +
                                    kStay);
  arguments.insert(arguments.begin(), {"--max-restarts=1", "--restart-window=3"});
  Job first(arguments), second(arguments);
  for (auto* node : {&first, &second}) ASSERT_TRUE(node->prints("old worker", 2)) << node->err();
  const auto worker = static_cast<pid_t>(first.number_after("old worker "));
  daemon->kill(SIGKILL);
  daemon->wait();
  for (auto* node : {&first, &second}) ASSERT_TRUE(node->prints("it is tried again")) << node->err();
  daemon = std::make_unique<Daemon>(port);
  for (auto* node : {&first, &second}) ASSERT_TRUE(node->prints("connected to the job again")) << node->err();
  ::kill(worker, SIGKILL);
  for (auto* node : {&first, &second}) ASSERT_TRUE(node->prints("of round 3", 2)) << node->err() << daemon->err();
  first.kill(SIGTERM);
  for (auto* node : {&first, &second}) EXPECT_EQ(node->wait(), 143) << node->err();
}

TEST(DdpRendezvousJobs, CanBeStoppedWhileTheDaemonIsAway) {
  auto daemon = std::make_unique<Daemon>();
  Job node(daemon->node("job", "1:2", "echo up; " + kStay));
  ASSERT_TRUE(node.prints("up", 2)) << node.err();
  daemon.reset();
  ASSERT_TRUE(node.prints("it is tried again")) << node.err();
  node.kill(SIGTERM);
  EXPECT_EQ(node.wait(), 143) << node.err();
  EXPECT_TRUE(node.is_gone_within());
}

TEST(DdpRendezvousJobs, LeaveNothingBehindWhereNobodyIsLeft) {
  Daemon daemon;
  {
    Job gone(daemon.node("job", "2", "true"));
    ASSERT_TRUE(daemon.prints("waiting for 1 more node")) << daemon.err();
    gone.kill(SIGKILL);
    ASSERT_TRUE(daemon.prints("has left")) << daemon.err();
  }
  Job again(daemon.node("job", "1:2", "echo $WORLD_SIZE"));  // other settings, and a wait of its own
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(again.out(), "2\n2\n");
}

TEST(DdpRendezvousJobs, BeginAnewWhileTheLastRunOfTheirNameIsStopped) {
  Daemon daemon;
  Job last(daemon.node("job", "1:2", "trap '' TERM; echo up; " + kStay));
  ASSERT_TRUE(last.prints("up", 2)) << last.err();
  last.kill(SIGTERM);
  ASSERT_TRUE(last.prints("stopping")) << last.err();
  Job next(daemon.node("job", "1:2", "echo done"));
  EXPECT_EQ(next.wait(), 0) << next.err();
  EXPECT_EQ(next.out(), "done\ndone\n");
  last.kill(SIGTERM);
  EXPECT_TRUE(becomes_true([&] {  // an echo within 200 ms counts as the first; further ones are sent until one counts
    last.kill(SIGTERM);
    return process_state(last.pid()) == 'Z';
  }));
  EXPECT_EQ(last.wait(), 143);
}

TEST(DdpRendezvousJobs, AreShownToThoseOnThisHost) {
  Daemon daemon;
  Job node(daemon.node("the job", "1:2", "echo up; " + kStay));
  ASSERT_TRUE(node.prints("up", 2)) << node.err();
  EXPECT_THAT(
      daemon.answer_to("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
      AllOf(HasSubstr("\"run_id\": \"the job\""), HasSubstr("\"phase\": \"running\""), HasSubstr("\"world_size\": 2")));
  EXPECT_THAT(daemon.answer_to("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"), HasSubstr("\r\n\r\nok\n"));
  node.kill(SIGTERM);
  EXPECT_EQ(node.wait(), 143);
  EXPECT_THAT(daemon.answer_to("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), HasSubstr("\nddp_jobs 0\n"));
  daemon.kill(SIGTERM);
  EXPECT_EQ(daemon.wait(), 1000 + SIGTERM);
}

class DdpRendezvousLog : public ::testing::Test {
 protected:
  // A daemon, with these options beside its port, and a job of it that ends so.
  void run(const std::vector<std::string>& options, const std::string& script, int exit_code) {
    std::vector<std::string> arguments{"--port", "0"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    daemon_.emplace(arguments, StoreProgram::program());
    const auto port = std::to_string(daemon_->number_after("membership listens on port "));
    Job node({"--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", "--nproc-per-node=1", "--rdzv-backend=c10d",
              "--rdzv-id=the job", "--rdzv-endpoint=127.0.0.1:" + port, "--no-python", "sh", "-c", script});
    EXPECT_EQ(node.wait(), exit_code) << node.err();
  }
  // All of its stderr.
  const std::string& ended() {
    daemon_->kill(SIGTERM);
    EXPECT_EQ(daemon_->wait(), 1000 + SIGTERM);
    return daemon_->err();
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  ScratchDirectory folder_;
  std::optional<Job> daemon_;
};

TEST_F(DdpRendezvousLog, HasTimeLevelJobAndNode) {
  run({}, "exit 3", 3);
  ASSERT_TRUE(daemon_->prints(" phase=finished "));
  const auto& log = ended();
  const std::string time = "[0-9-]{10}T[0-9:]{8}\\.[0-9]{3}Z ";
  EXPECT_EQ(matches(log, time + "info node_came job=\"the job\" node=" + base::host_name() + " ").size(), 1u) << log;
  EXPECT_EQ(matches(log, time + "warning round_failed job=\"the job\" node=").size(), 1u) << log;
  EXPECT_EQ(matches(log, time + "error phase job=\"the job\" phase=finished .* exit_code=3 ").size(), 1u) << log;
  EXPECT_THAT(log, Not(HasSubstr("Z debug ")));
}

TEST_F(DdpRendezvousLog, OfLevelErrorSaysNothingOfAGoodEnd) {
  run({"--log-level=error"}, "true", 0);
  EXPECT_EQ(ended(), "");
}

TEST_F(DdpRendezvousLog, GetsTheLastEventsOfAllLevelsIntoItsFolderWhenAJobEndsBadly) {
  run({"--log-level=off", "--log-dir", folder_.path().string()}, "exit 3", 3);
  ASSERT_TRUE(becomes_true(
      [&] { return contents_of(path("ddp-rendezvous.log")).find(" phase=finished ") != std::string::npos; }));
  EXPECT_EQ(ended(), "");
  EXPECT_THAT(contents_of(path("ddp-rendezvous.log")), HasSubstr("Z debug round_started job=\"the job\" node="));
}

TEST_F(DdpRendezvousLog, GetsTheLastEventsAlsoWhereAllNodesOfAJobAreGone) {
  daemon_.emplace(std::vector<std::string>{"--port", "0", "--log-level=off", "--log-dir", folder_.path().string()},
                  StoreProgram::program());
  const auto port = std::to_string(daemon_->number_after("membership listens on port "));
  Job node({"--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", "--nproc-per-node=1", "--max-restarts=3",
            "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:" + port, "--no-python", "sh", "-c",
            "echo works; sleep 1000"});
  ASSERT_TRUE(node.prints("works"));
  node.kill(SIGKILL);
  EXPECT_EQ(node.wait(), 1000 + SIGKILL);
  ASSERT_TRUE(becomes_true(
      [&] { return contents_of(path("ddp-rendezvous.log")).find(" all_nodes_are_gone=true") != std::string::npos; }));
  EXPECT_EQ(ended(), "");
  EXPECT_THAT(contents_of(path("ddp-rendezvous.log")), HasSubstr("Z debug store_opened "));
}

TEST_F(DdpRendezvousLog, KeepsItsFolderSmall) {
  std::ofstream(path("ddp-rendezvous.log")).seekp(9 << 20) << "of before\n";
  run({"--log-dir", folder_.path().string()}, "exit 3", 3);
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(path("ddp-rendezvous.log.old")); }));
  (void)ended();  // which waits for what is being written
  EXPECT_GT(std::filesystem::file_size(path("ddp-rendezvous.log.old")), 9u << 20);
  EXPECT_THAT(contents_of(path("ddp-rendezvous.log")), HasSubstr(" phase=finished "));
  EXPECT_THAT(contents_of(path("ddp-rendezvous.log")), Not(HasSubstr("of before")));
}

TEST(DdpRendezvous, WrongUseIsNamedAndEndsWithTwo) {
  const struct {
    std::vector<std::string> arguments;
    const char* want;
  } cases[] = {
      {{"stor"}, "error: "},
      {{"--port", "65536"}, "65536"},
      {{"--host", "localhost"}, "--host: \"localhost\" is no IPv4 or IPv6 address"},
      {{"--heartbeat-timeout", "0"}, "--heartbeat-timeout"},
      {{"store", "--bogus"}, "--bogus"},
      {{"store", "--port", "65536"}, "65536"},
      {{"store", "--port", "x"}, "--port"},
      {{"store", "--port"}, "--port"},
      {{"--log-dir", ""}, "--log-dir: a folder is wanted"},
      {{"--log-dir", "/tmp", "store"}, "--log-dir: a store alone has no jobs that end"},
      {{"--log-level", "loud"}, "debug, info, warning, error or off is wanted, not 'loud'"},
      {{"store", "--log-level", "loud"}, "not 'loud'"},
      {{"--port", "0", "--log-dir", "/no/such"}, "--log-dir: /no/such/ddp-rendezvous.log can't be written: No "},
      {{"store", "--host", "localhost"}, "--host: \"localhost\" is no IPv4 or IPv6 address"},
      {{"store", "--store-memory", "63"}, "--store-memory"},
      {{"store", "--store-memory", "1GiB"}, "--store-memory"},
      {{"store", "--store-allow", "10.0.0.0/33"}, "--store-allow: \"10.0.0.0/33\" is no block"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.want);
    Job job(c.arguments, StoreProgram::program());
    EXPECT_EQ(job.wait(), 2);
    EXPECT_EQ(job.out(), "");
    EXPECT_THAT(job.err(), AllOf(HasSubstr(c.want), HasSubstr("\nwhere: the command line of ddp-rendezvous\ntry:   ")));
  }
}

TEST(DdpRendezvous, HelpAndVersionArePrinted) {
  for (const auto& [arguments, want] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"--help"}, "Usage: ddp-rendezvous [OPTIONS]"},
                                                                     {{"store", "--help"}, "--store-allow"},
                                                                     {{"store", "--help"}, "--store-memory"},
                                                                     {{"--version"}, "ddp-rendezvous 0."}}) {
    SCOPED_TRACE(want);
    Job job(arguments, StoreProgram::program());
    EXPECT_EQ(job.wait(), 0);
    EXPECT_THAT(job.out(), HasSubstr(want));
  }
}

}  // namespace
}  // namespace ddp::test
