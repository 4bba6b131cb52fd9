// A disk that stops answering behind ddprun's files: what else ddprun has to do goes on.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/fuse_disk.hpp"
#include "tests/integration/job.hpp"
#include "tests/integration/stalling_disk.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DdprunDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!StallingDisk::is_possible()) GTEST_SKIP() << "this kernel lets no process answer for another's system calls";
    fs::create_directory(folder_);
  }

  std::string path_of(const std::string& name) const { return (scratch_.path() / name).string(); }
  bool appears(const std::string& name) const {
    return becomes_true([&] { return fs::exists(path_of(name)); });
  }

  // ddprun's standard stream goes to a file on the disk.
  Job::Options with_stream(int stream) const {
    Job::Options options;
    options.before_exec = [this, stream] {
      const int file = ::open(console_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      ::dup2(file, stream);
      disk_.enter();
    };
    return options;
  }

  ScratchDirectory scratch_;
  const fs::path folder_ = scratch_.path() / "disk";
  const std::string console_ = (folder_ / "console").string();
  StallingDisk disk_{folder_};
};

TEST_F(DdprunDisk, AStalledStdoutHoldsUpNeitherWorkersNorAStop) {
  disk_.stall();
  Job job(shell(1, "trap 'touch " + path_of("stopped") + "; exit 0' TERM; echo first; seq 300000; touch " +
                       path_of("printed") + "; while :; do :; done"),
          with_stream(1));
  ASSERT_TRUE(disk_.holds(console_));
  EXPECT_TRUE(appears("printed"));  // beyond what its pipe holds
  job.kill(SIGTERM);
  EXPECT_TRUE(appears("stopped"));
  disk_.heal();
  EXPECT_EQ(job.wait(), 143);
  const auto text = contents_of(console_);
  EXPECT_THAT(text, StartsWith("first\n1\n2\n"));
  EXPECT_THAT(text.substr(text.size() - 100), EndsWith("\n299999\n300000\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 300'001);
}

TEST_F(DdprunDisk, WhatAStalledStdoutHasNoRoomForIsDroppedAndCounted) {
  disk_.stall();
  Job job(shell(1, "seq 2700000; touch " + path_of("printed") + "; " + kStay), with_stream(1));
  EXPECT_TRUE(appears("printed"));
  disk_.heal();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  const auto text = contents_of(console_);
  EXPECT_EQ(text.substr(0, 6), "1\n2\n3\n");
  EXPECT_EQ(occurrences(text, "ddprun: dropped "), 1);
}

TEST_F(DdprunDisk, AStalledStderrHoldsUpNoRestart) {
  disk_.stall();
  const auto ready = path_of("ready") + "$TORCHELASTIC_RESTART_COUNT";
  Job job(shell(2,
                "if [ $RANK = 1 ]; then until [ -e " + ready + " ]; do :; done; exit 3; fi; echo hello; touch " +
                    ready + "; " + kStay,
                {"--max-restarts=1"}),
          with_stream(2));
  EXPECT_TRUE(job.prints("hello", 2));
  ASSERT_TRUE(disk_.holds(console_));
  disk_.heal();
  EXPECT_EQ(job.wait(), 3);
  const auto text = contents_of(console_);
  EXPECT_LT(text.find("restart"), text.find("error: rank 1 ")) << text;
  EXPECT_THAT(text, HasSubstr("error: rank 1 "));
}

// One worker whose round 0 fails as soon as the file "go" is there; round 1 begins on a disk that has stalled
// meanwhile.
class DdprunDiskOfLogs : public DdprunDisk {
 protected:
  void stall_at_restart(Job& job) {
    ASSERT_TRUE(job.prints("round 0"));
    disk_.stall();
    std::ofstream(path_of("go"));
    ASSERT_TRUE(disk_.holds(folder_ / "logs"));
  }

  std::vector<std::string> command() const {
    return shell(1,
                 "echo round $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || " + kStay +
                     "; until [ -e " + path_of("go") + " ]; do :; done; exit 3",
                 {"--log-dir=" + (folder_ / "logs").string(), "--tee=1", "--max-restarts=1"});
  }

  Job::Options options() const {
    Job::Options out;
    out.before_exec = [this] { disk_.enter(); };
    return out;
  }
};

TEST_F(DdprunDiskOfLogs, ARoundBeginsWhenTheDiskAnswersAgain) {
  Job job(command(), options());
  stall_at_restart(job);
  EXPECT_EQ(occurrences(job.out(), "round 1"), 0);
  disk_.heal();
  EXPECT_TRUE(job.prints("round 1"));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST_F(DdprunDiskOfLogs, AStopDoesNotWaitForTheDisk) {
  Job job(command(), options());
  stall_at_restart(job);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(occurrences(job.out(), "round 1"), 0);
}

// Two nodes of one worker each. That of node 1 fails in round 0 as soon as the file "go" is there, on a disk that has
// stalled meanwhile.
class DdprunDiskOfTwoNodes : public DdprunDisk {
 protected:
  std::vector<std::string> command(int rank, const std::vector<std::string>& options = {}) const {
    auto out = elastic_node("2", rank, port_, 1);
    out.back() += ",heartbeat_timeout=1";  // less than the time for which a disk is waited for
    out.insert(out.end(), options.begin(), options.end());
    const auto script = "echo round $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] || " +
                        kStay + "; echo '{\"message\": \"no data\"}' > $TORCHELASTIC_ERROR_FILE; touch " +
                        path_of("failing") + "; until [ -e " + path_of("go") + " ]; do :; done; echo more; exit 3";
    out.insert(out.end(), {"sh", "-c", script});
    return out;
  }

  Job::Options on_disk() const {
    Job::Options out;
    out.environment = {"TMPDIR=" + folder_.string()};
    out.before_exec = [this] { disk_.enter(); };
    return out;
  }

  void stall_at_failure() {
    ASSERT_TRUE(appears("failing"));
    disk_.stall();
    std::ofstream(path_of("go"));
    ASSERT_TRUE(disk_.holds(folder_));
  }

  static void expect_that_they_go_on(Job& zero, Job& one) {
    EXPECT_TRUE(zero.prints("round 1")) << zero.err();
    EXPECT_TRUE(one.prints("round 1")) << one.err();
    EXPECT_EQ(occurrences(zero.err(), "silent"), 0) << zero.err();
  }

  void end(Job& zero, Job& one) {
    disk_.heal();
    zero.kill(SIGTERM);
    EXPECT_EQ(zero.wait(), 143) << zero.err();
    EXPECT_EQ(one.wait(), 143) << one.err();
  }

  const std::string port_ = free_port();
};

// Error files are in ddprun's temporary folder where there is no folder for logs.
TEST_F(DdprunDiskOfTwoNodes, ANodeStaysInTheJobWhileTheErrorFileOfItsWorkerCannotBeRead) {
  Job zero(command(0)), one(command(1), on_disk());
  stall_at_failure();
  EXPECT_TRUE(one.prints("still not read after 2 s")) << one.err();
  expect_that_they_go_on(zero, one);
  EXPECT_EQ(occurrences(one.err(), "the log files is slow"), 0) << one.err();
  EXPECT_EQ(occurrences(zero.err(), "no data"), 0) << zero.err();
  end(zero, one);
}

TEST_F(DdprunDiskOfTwoNodes, ANodeStaysInTheJobWhileTheLastOutputOfItsWorkerCannotBeWritten) {
  const auto logs = folder_ / "logs";
  Job zero(command(0)), one(command(1, {"--tee=1", "--log-dir=" + logs.string()}), on_disk());
  stall_at_failure();
  EXPECT_TRUE(one.prints("the disk of the log files is slow; what is left is written while the job goes on"));
  EXPECT_TRUE(one.prints("still not read after 2 s")) << one.err();
  disk_.heal();  // else no worker of the next round starts
  expect_that_they_go_on(zero, one);
  end(zero, one);
  EXPECT_EQ(contents_of((logs / "latest/round_0/rank_1/stdout.log").string()), "round 0\nmore\n");
}

TEST_F(DdprunDisk, AStalledErrorFileOfItsCallerHoldsUpNoEnd) {
  Job::Options options;
  options.environment = {"TORCHELASTIC_ERROR_FILE=" + (folder_ / "error.json").string()};
  options.before_exec = [this] { disk_.enter(); };
  Job job(shell(1, "echo ready; until [ -e " + path_of("go") + " ]; do :; done; exit 3"), options);
  ASSERT_TRUE(job.prints("ready"));
  disk_.stall();
  std::ofstream(path_of("go"));
  ASSERT_TRUE(disk_.holds(folder_));
  EXPECT_EQ(job.wait(), 3) << job.err();
}

TEST_F(DdprunDisk, AStalledLogOfTheDaemonHoldsUpNoJob) {
  disk_.stall();
  auto options = with_stream(2);
  options.program = "ddp-rendezvous";
  Job daemon({"--port", "0"}, options);
  const auto port = std::to_string(daemon.number_after("membership listens on port "));
  ASSERT_TRUE(disk_.holds(console_));
  Job job({"--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", "--nproc-per-node=1", "--rdzv-backend=c10d",
           "--rdzv-id=the_job", "--rdzv-endpoint=127.0.0.1:" + port, "true"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  disk_.heal();
  daemon.kill(SIGTERM);
  EXPECT_EQ(daemon.wait(), 1000 + SIGTERM);
  EXPECT_THAT(contents_of(console_), HasSubstr(" job=the_job "));
}

// The same with a file system whose server stops answering, which holds back every call of every process.
class DdprunFuseDisk : public ::testing::Test {
 protected:
  // False: this machine can't.
  bool mount(FuseDisk::Options options) {
    fs::create_directory(folder_);
    try {
      disk_.emplace(folder_, options);
      return true;
    } catch (const std::runtime_error& error) {
      why_not_ = error.what();
      return false;
    }
  }

  std::string path_of(const std::string& name) const { return (scratch_.path() / name).string(); }
  bool appears(const std::string& name) const {
    return becomes_true([&] { return fs::exists(path_of(name)); });
  }

  // This standard stream goes to a file on the disk.
  Job::Options with_stream(int stream, const fs::path& file) const {
    Job::Options options;
    options.before_exec = [stream, path = file.string()] {
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), stream);
    };
    return options;
  }

  ScratchDirectory scratch_;
  const fs::path folder_ = scratch_.path() / "disk";
  std::string why_not_;
  std::optional<FuseDisk> disk_;
};

// Several times as long as the silence that counts as a node's death.
std::chrono::seconds stall_time() {
  const char* seconds = std::getenv("DDP_TEST_STALL_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 6 : std::atoi(seconds));
}

// What a log file has and misses, without the line that says so.
struct LogBytes {
  std::size_t there = 0, missing = 0;
};

LogBytes bytes_of_log(const std::string& text) {
  const std::string begin = "ddprun: ", end = " bytes of output are missing here, because they could not be written\n";
  const auto at = text.find(begin);
  const auto number_end = at == std::string::npos ? at : text.find(end, at);
  if (number_end == std::string::npos || occurrences(text, end) != 1) return {};
  const auto note = number_end + end.size() - at;
  return {text.size() - note, std::stoul(text.substr(at + begin.size()))};
}

// Two nodes and a daemon whose log folders are on the disk, which stalls while workers print more than ddprun keeps.
TEST_F(DdprunFuseDisk, AStallLosesNoNodeAndHoldsUpNoWorkerAndWhatIsMissingIsCounted) {
  if (!mount({})) GTEST_SKIP() << why_not_;
  constexpr std::size_t kLines = 3'000'000;
  std::size_t all_bytes = std::string("round 0\n").size();
  for (std::size_t line = 1; line <= kLines; ++line) all_bytes += std::to_string(line).size() + 1;

  auto of_daemon = with_stream(2, folder_ / "daemon");
  of_daemon.program = "ddp-rendezvous";
  Job daemon({"--port=0", "--heartbeat-timeout=2", "--log-level=debug", "--log-dir=" + folder_.string()}, of_daemon);
  const auto port = std::to_string(daemon.number_after("membership listens on port "));
  const auto command = [&](const std::string& nodes, const std::string& id, const std::string& script) {
    return std::vector<std::string>{"--nnodes=" + nodes,
                                    "--nproc-per-node=1",
                                    "--rdzv-backend=c10d",
                                    "--rdzv-id=" + id,
                                    "--rdzv-endpoint=127.0.0.1:" + port,
                                    "--rdzv-conf=last_call_timeout=60,heartbeat_timeout=2",
                                    "--max-restarts=3",
                                    "--tee=1",
                                    "--log-dir=" + (folder_ / "logs").string(),
                                    "sh",
                                    "-c",
                                    script};
  };
  const auto script = "echo round $TORCHELASTIC_RESTART_COUNT; touch " + path_of("ready") + "$RANK; until [ -e " +
                      path_of("go") + " ]; do sleep 0.01; done; seq " + std::to_string(kLines) + "; touch " +
                      path_of("printed") + "$RANK; " + kStay;
  Job zero(command("2", "nodes", script)), one(command("2", "nodes", script), with_stream(1, folder_ / "console"));
  ASSERT_TRUE(appears("ready0") && appears("ready1"));

  disk_->stall();
  const auto end = std::chrono::steady_clock::now() + stall_time();
  std::ofstream(path_of("go"));
  EXPECT_TRUE(appears("printed0") && appears("printed1"));
  EXPECT_TRUE(disk_->holds_a_call());
  std::this_thread::sleep_until(end);  // that long is what is tested
  disk_->heal();

  zero.kill(SIGTERM);
  EXPECT_EQ(zero.wait(), 143) << zero.err();
  EXPECT_EQ(one.wait(), 143) << one.err();
  daemon.kill(SIGTERM);
  EXPECT_EQ(daemon.wait(), 1000 + SIGTERM);
  for (const auto* job : {&zero, &one}) {
    EXPECT_EQ(occurrences(job->err(), "silent"), 0) << job->err();
    EXPECT_EQ(occurrences(job->err(), "restart"), 0) << job->err();
    EXPECT_EQ(occurrences(job->err(), "its disk does not answer; what workers print is missing"), 1) << job->err();
  }
  std::vector<fs::path> logs(fs::directory_iterator(folder_ / "logs"), {});  // this disk has no links
  ASSERT_EQ(logs.size(), 1u);
  for (const auto* rank : {"rank_0", "rank_1"}) {
    const auto text = contents_of(logs.front() / "round_0" / rank / "stdout.log");
    EXPECT_THAT(text.substr(0, 100), StartsWith("round 0\n1\n2\n"));
    const auto bytes = bytes_of_log(text);
    EXPECT_GT(bytes.there, std::size_t{15} << 20U);
    const bool has_cut_line = bytes.there + bytes.missing == all_bytes + 1;  // whose newline is the note's
    EXPECT_EQ(bytes.there + bytes.missing, all_bytes + (has_cut_line ? 1 : 0));
  }
  EXPECT_FALSE(fs::exists(logs.front() / "round_1"));
  const auto console = contents_of(folder_ / "console");
  EXPECT_THAT(console.substr(0, 100), HasSubstr("round 0\n"));
  EXPECT_EQ(occurrences(console, "ddprun: dropped "), 1);
  const auto log = contents_of(folder_ / "daemon");
  EXPECT_EQ(occurrences(log.substr(0, log.find(" stop_asked ")), " node_gone "), 0) << log;
  EXPECT_THAT(log, HasSubstr(" stopped signal=SIGTERM"));
}

// A server that is not asked at close(): else the kernel holds back the end of any process that has a file there.
TEST_F(DdprunFuseDisk, AJobThatFailsDuringAStallEnds) {
  if (!mount({.close_waits = false})) GTEST_SKIP() << why_not_;
  { std::ofstream(folder_ / "asked"); }  // and is told so
  auto of_daemon = with_stream(2, folder_ / "daemon");
  of_daemon.program = "ddp-rendezvous";
  of_daemon.environment = {"ASAN_OPTIONS=detect_leaks=0"};  // a leak check waits for a thread that the disk holds
  Job daemon({"--port=0", "--log-level=debug", "--log-dir=" + folder_.string()}, of_daemon);
  const auto port = std::to_string(daemon.number_after("membership listens on port "));
  Job::Options options;
  options.environment = {"TMPDIR=" + folder_.string(), "ASAN_OPTIONS=detect_leaks=0"};
  Job job({"--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.1", "--nproc-per-node=1", "--rdzv-backend=c10d",
           "--rdzv-id=fails", "--rdzv-endpoint=127.0.0.1:" + port, "--tee=3", "--log-dir=" + folder_.string(),
           "--report=" + (folder_ / "report").string(), "sh", "-c",
           "echo ready; until [ -e " + path_of("go") + " ]; do sleep 0.01; done; echo last; exit 3"},
          options);
  ASSERT_TRUE(job.prints("ready"));
  disk_->stall();
  std::ofstream(path_of("go"));
  EXPECT_EQ(job.wait(), 3) << job.err();
  EXPECT_EQ(occurrences(job.out(), "last"), 1);
  EXPECT_EQ(occurrences(job.err(), "its own log was not written: the disk does not answer"), 1) << job.err();
  EXPECT_EQ(occurrences(job.err(), "the report can't be written: the disk does not answer"), 1) << job.err();
  daemon.kill(SIGTERM);
  EXPECT_EQ(daemon.wait(), 1000 + SIGTERM);
  disk_->heal();
}

}  // namespace
}  // namespace ddp::test
