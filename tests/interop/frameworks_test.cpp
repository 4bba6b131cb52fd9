// What stands on PyTorch: it must take ddprun for torchrun, and look in a terminal as it does without a launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/interop/python.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using Frameworks = PythonTest;

// Both scripts have 8 batches for 2 workers.
void expect_two_workers_share_the_steps(const std::string& name) {
  Job job({"--standalone", "--nproc-per-node=2", script(name)}, python_job());
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0 of 2: 4 steps\n"));
  EXPECT_THAT(job.out(), HasSubstr("rank 1 of 2: 4 steps\n"));
}

TEST_F(Frameworks, LightningTakesDdprunForTorchrun) {
  need_module("lightning");
  if (IsSkipped()) return;
  expect_two_workers_share_the_steps("train_lightning.py");
}

TEST_F(Frameworks, AccelerateTakesDdprunForTorchrun) {
  need_module("accelerate");
  if (IsSkipped()) return;
  expect_two_workers_share_the_steps("train_accelerate.py");
}

TEST_F(Frameworks, TqdmDrawsItsBarInATerminal) {
  need_module("tqdm");
  if (IsSkipped()) return;
  auto options = python_job();
  options.terminal = true;
  Job job({"--standalone", "--nproc-per-node=2", script("draw_bar.py")}, options);
  EXPECT_EQ(job.wait(), 0) << job.out();
  // Redrawn in place with its block characters.
  EXPECT_THAT(job.out(), HasSubstr("\r"));
  EXPECT_THAT(job.out(), HasSubstr("train: 100%|\u2588"));
  EXPECT_THAT(job.out(), HasSubstr("no bar here"));
}

}  // namespace
}  // namespace ddp::test
