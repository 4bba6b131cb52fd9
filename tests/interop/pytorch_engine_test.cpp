// The gradient engine beside PyTorch's DistributedDataParallel: the same training, step for step.
// SyncBatchNorm has torch.nn.BatchNorm1d on the joined batch beside it, in one process: PyTorch's own SyncBatchNorm
// refuses tensors on a CPU.
// tests/integration/engine_vectors has what engine_reference.py wrote with PyTorch 2.15.0, for machines without it.
#include <gtest/gtest.h>

#include <string>

#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using EngineAndPytorch = PythonTest;

TEST_F(EngineAndPytorch, ComeToTheSameParameters) {
  const ScratchDirectory scratch;
  Job reference({"--standalone", "--nproc-per-node=2", script("engine_reference.py"), scratch.path(), "--gradients"},
                python_job());
  ASSERT_EQ(reference.wait(), 0) << reference.err();
  Job job({"--standalone", "--nproc-per-node=2", std::string(DDP_TEST_BIN_DIR) + "/engine_steps", scratch.path(),
           "--gradients"});
  EXPECT_EQ(job.wait(), 0) << job.out() << job.err();  // it says which case it is
}

}  // namespace
}  // namespace ddp::test
