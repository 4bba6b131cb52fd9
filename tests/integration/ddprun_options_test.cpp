// Options that only show something: what they print can be used, and nothing is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::StartsWith;

TEST(DdprunOptions, WhatTheyShowGoesToStdout) {
  const std::pair<const char*, const char*> cases[] = {{"--help", "usage: ddprun"},
                                                       {"--version", "ddprun "},
                                                       {"--print-man-page", ".TH DDPRUN 1"},
                                                       {"--print-completion=bash", "# Completion of ddprun for bash"},
                                                       {"--print-completion=zsh", "#compdef ddprun"},
                                                       {"--print-completion=fish", "# Completion of ddprun for fish"}};
  for (const auto& [option, begins] : cases) {
    Job job({option});
    EXPECT_EQ(job.wait(), 0) << option;
    EXPECT_THAT(job.out(), StartsWith(begins));
    EXPECT_EQ(job.err(), "");
  }
}

TEST(DdprunOptions, AWrongValueEndsWith2InThreeParts) {
  Job job({"--rdzv-conf=join_timeot=5", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_EQ(job.err(),
            "error: --rdzv-conf has no key 'join_timeot'\nwhere: --rdzv-conf=join_timeot=5\n"
            "try:   `join_timeout`; docs/torchrun.md lists all keys\n");
}

}  // namespace
}  // namespace ddp::test
