// examples/communication_hook: a program's own hook does what it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::StartsWith;

TEST(CommunicationHookExample, LearnsFromTheSignsOfGradients) {
  for (const char* const ranks : {"1", "3"}) {
    Job job({"--standalone", std::string("--nproc-per-node=") + ranks, built("communication_hook")});
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(job.out(), StartsWith("largest error of a weight: 0.0")) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace ddp::test
