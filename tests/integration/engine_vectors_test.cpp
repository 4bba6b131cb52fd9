// Training with each feature of the gradient engine comes to the parameters that PyTorch's DistributedDataParallel
// comes to. engine_vectors/*.f32 were written by tests/interop/engine_reference.py, with PyTorch 2.15.0 on two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;

TEST(EngineVectors, LibddpComesToThePyTorchParameters) {
  const std::string vectors = std::string(DDP_TEST_SOURCE_DIR) + "/tests/integration/engine_vectors";
  Job job({"--standalone", "--nproc-per-node=2", std::string(DDP_TEST_BIN_DIR) + "/engine_steps", vectors});
  EXPECT_EQ(job.wait(), 0) << job.out() << job.err();
  for (const char* const each : {"plain",
                                 "accumulation",
                                 "unused",
                                 "unused_everywhere",
                                 "unused_everywhere_zero_1",
                                 "unused_everywhere_zero_2",
                                 "static_graph",
                                 "bfloat16",
                                 "uneven_inputs",
                                 "power_sgd_1",
                                 "power_sgd_2",
                                 "local_sgd",
                                 "adamw",
                                 "zero_1",
                                 "zero_2",
                                 "adamw_master_weights",
                                 "zero_1_master_weights",
                                 "zero_2_master_weights",
                                 "batch_norm",
                                 "batch_norm_training"}) {
    EXPECT_THAT(job.out(), HasSubstr(std::string(each) + ": largest difference "));
  }
}

}  // namespace
}  // namespace ddp::test
