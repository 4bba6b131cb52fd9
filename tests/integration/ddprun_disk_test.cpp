// A disk that stops answering behind ddprun's files: what else ddprun has to do goes on.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

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
  Job job(shell(1, "trap 'touch " + path_of("stopped") + "; exit 0' TERM; echo first; seq 2000000; touch " +
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
  EXPECT_THAT(text.substr(text.size() - 100), EndsWith("\n1999999\n2000000\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2'000'001);
}

TEST_F(DdprunDisk, WhatAStalledStdoutHasNoRoomForIsDroppedAndCounted) {
  disk_.stall();
  Job job(shell(1, "seq 4000000; touch " + path_of("printed") + "; " + kStay), with_stream(1));
  EXPECT_TRUE(appears("printed"));
  disk_.heal();
  EXPECT_TRUE(becomes_true([&] { return contents_of(console_).find("ddprun: dropped ") != std::string::npos; }));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(contents_of(console_), StartsWith("1\n2\n3\n"));
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

}  // namespace
}  // namespace ddp::test
