#include "worker_runtime/backends/nccl/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/error.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp::nccl_backend {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::thrown_by;

TEST(DeviceChoice, FollowsLocalRankTheProgramAndTheBinding) {
  const struct {
    const char* what;
    DeviceQuestion question;
    int want;
  } cases[] = {
      {"the local rank's", {.count = 8, .local_rank = 5, .local_size = 8}, 5},
      {"the only one, which the launcher bound this worker to", {.count = 1, .local_rank = 5, .local_size = 8}, 0},
      {"the one that the program names", {.count = 8, .local_rank = 5, .local_size = 8, .named = 2}, 2},
      {"in turns, where ranks mean to share", {.count = 2, .local_rank = 5, .local_size = 8, .share_device = true}, 1},
      {"its own, also where ranks may share", {.count = 8, .local_rank = 5, .local_size = 8, .share_device = true}, 5},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(choose_device(c.question), c.want);
  }
}

TEST(DeviceChoice, NoGpuIsTold) {
  const auto error = thrown_by<InvalidArgument>([] { choose_device({.count = 0, .visible_devices = "3"}); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("needs a GPU: this process sees 0 GPUs (CUDA_VISIBLE_DEVICES=3)"),
                                   HasSubstr("nvidia-smi -L")));
}

TEST(DeviceChoice, ARankBeyondTheGpusIsTold) {
  const auto error = thrown_by<InvalidArgument>([] { choose_device({.count = 2, .local_rank = 2, .local_size = 3}); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("local rank 2 of 3 has no GPU of its own: this process sees 2 GPUs\n"),
                                   HasSubstr("share_device")));
}

TEST(DeviceChoice, AnIndexThatIsNotThereIsTold) {
  for (const int named : {-1, 2}) {
    SCOPED_TRACE(named);
    const auto error = thrown_by<InvalidArgument>([&] { choose_device({.count = 2, .named = named}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("no device cuda:" + std::to_string(named)), HasSubstr("an index below 2")));
  }
}

}  // namespace
}  // namespace ddp::nccl_backend
