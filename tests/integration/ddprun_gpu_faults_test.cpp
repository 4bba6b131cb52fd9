// What the driver reported of a GPU is in the report of a worker that fails. A stand-in for NVML reports it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kStandIn = "LD_LIBRARY_PATH=" DDP_TEST_STAND_IN_NVML_DIR;

TEST(DdprunGpuFaults, AreNamedWithTheFailure) {
  const auto taken = std::filesystem::temp_directory_path() / ("ddp_xid_taken_" + std::to_string(::getpid()));
  Job job(shell(1, "while ! [ -e " + taken.string() + " ]; do sleep 0.01; done; kill -ABRT $$"),
          {{kStandIn, "STAND_IN_NVML_XID=79", "STAND_IN_NVML_TAKEN=" + taken.string()}, false});
  EXPECT_EQ(job.wait(), 128 + SIGABRT) << job.err();
  std::filesystem::remove(taken);
  EXPECT_THAT(job.err(), HasSubstr("\ngpus:  GPU 1 reported XID 79 (the GPU has fallen off the bus) "));
  EXPECT_THAT(job.err(), HasSubstr("\ntry:   look at what the GPU reported, above; `nvidia-smi -q` on "));
}

TEST(DdprunGpuFaults, AreNotAwaited) {
  Job job(shell(1, "exit 3"), {{kStandIn}, false});  // its wait for an event lasts an hour
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), Not(HasSubstr("gpus:")));
}

}  // namespace
}  // namespace ddp::test
