// What ddprun has of cgroups: what outlives it is ended, and a death for want of memory is told from other ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/integration/job.hpp"
#include "tests/integration/limited_group.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The folder of this process's cgroup (version 2); empty if no group can be made in it.
fs::path own_group() {
  const auto cgroups = contents_of("/proc/self/cgroup");
  const auto at = cgroups.find("0::/");
  if (at == std::string::npos) return {};
  const auto path = cgroups.substr(at + 4, cgroups.find('\n', at) - at - 4);
  for (const fs::path root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const auto probe = root / path / ("ddp_test_probe_" + std::to_string(::getpid()));
    std::error_code error;
    if (!fs::exists(root / path / "cgroup.procs") || !fs::create_directory(probe, error)) continue;
    fs::remove(probe, error);
    return root / path;
  }
  return {};
}

TEST(DdprunCgroup, WhatOutlivesDdprunAndGuardianIsEndedByTheNextDdprun) {
  const auto parent = own_group();
  if (parent.empty()) GTEST_SKIP() << "no cgroup of version 2 can be made here";
  // tail ends by itself once nobody reads its output.
  Job job(shell(1,
                "setsid sh -c 'echo stray $$; exec tail -f /dev/null >/dev/null' & echo guardian $PPID; "
                "echo group $(grep ^0:: /proc/self/cgroup) ; " +
                    kStay));
  const auto stray = static_cast<pid_t>(job.number_after("stray ")),
             guardian = static_cast<pid_t>(job.number_after("guardian "));
  ASSERT_TRUE(job.prints("group 0::"));
  const auto path = matches(job.out(), "group 0::\\S*/(ddprun_guardian_[0-9A-Za-z]+)");
  ASSERT_EQ(path.size(), 1u) << job.out();
  const auto group = parent / std::string(path.front()[1]);
  EXPECT_TRUE(fs::exists(group));
  for (const pid_t pid : {job.pid(), guardian}) ::kill(pid, SIGSTOP);  // so that neither sees the other's end
  for (const pid_t pid : {job.pid(), guardian}) ::kill(pid, SIGKILL);
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
  ASSERT_TRUE(becomes_true([&] { return contents_of(group / "cgroup.procs") == std::to_string(stray) + "\n"; }));
  Job next(shell(1, "exit 0"));
  EXPECT_EQ(next.wait(), 0) << next.err();
  EXPECT_TRUE(job.is_gone_within());
  EXPECT_FALSE(fs::exists(group));
}

TEST(DdprunCgroup, ADdprunThatDiesLeavesNoGroup) {
  const auto parent = own_group();
  if (parent.empty()) GTEST_SKIP() << "no cgroup of version 2 can be made here";
  Job job(shell(1, "echo group $(grep ^0:: /proc/self/cgroup) ; " + kStay));
  ASSERT_TRUE(job.prints("group 0::"));
  const auto path = matches(job.out(), "group 0::\\S*/(ddprun_guardian_[0-9A-Za-z]+)");
  ASSERT_EQ(path.size(), 1u) << job.out();
  job.kill(SIGKILL);
  EXPECT_TRUE(job.is_gone_within());
  EXPECT_FALSE(fs::exists(parent / std::string(path.front()[1])));
}

class MemoryOfAWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!group_.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
    options_.before_exec = [this] { group_.enter(); };
  }

  const LimitedGroup group_{std::size_t{128} << 20};
  Job::Options options_;
};

TEST_F(MemoryOfAWorker, IsTheReasonWhereTheKernelSaysSo) {
  Job job(shell(2, "if [ $RANK = 1 ]; then exec tail /dev/zero; fi; " + kStay), options_);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("error: rank 1 was killed by SIGKILL (out of memory) after"),
                               HasSubstr("try:   let each rank take less memory"), Not(HasSubstr("dmesg"))));
}

TEST_F(MemoryOfAWorker, IsNoReasonWhereTheKernelHasKilledNobodyForIt) {
  Job job(shell(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; " + kStay), options_);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("error: rank 1 was killed by SIGKILL after"),
                               HasSubstr("try:   find who sent it"), Not(HasSubstr("dmesg"))));
}

// Of an earlier round, whose workers have ended.
TEST_F(MemoryOfAWorker, OfAnEarlierRoundIsNoReason) {
  Job job(shell(1, "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exec tail /dev/zero; fi; kill -9 $$",
                {"--max-restarts=1"}),
          options_);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 0 was killed by SIGKILL (out of memory) after"),
                               HasSubstr("error: rank 0 was killed by SIGKILL after")));
}

}  // namespace
}  // namespace ddp::test
