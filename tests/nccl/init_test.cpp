// How groups of the backend nccl come to be, or do not, over the stand-in and on a GPU.
#include <ddp/ddp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;

TEST(Init, TellsOfAnNcclThatIsNotThere) {
  run_ranks(1, [](int) {
    set_variable("DDP_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
    const auto error = thrown_by<Error>([] { join(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("NCCL can't be loaded: /nowhere/libnccl.so.2"));
  });
}

TEST(Init, AGroupOfBothBackendsTakesEitherMemory) {
  run_ranks(2, [](int rank) {
    auto group = join(testing::kPatience, {.backend = "cpu:cpu,cuda:nccl"});
    std::vector<float> host(3, static_cast<float>(rank + 1));
    group.all_reduce(host);
    EXPECT_EQ(host, std::vector<float>(3, 3));
    const Array<float> device(group.device(), std::vector<float>(3, static_cast<float>(rank + 1)));
    group.all_reduce(device.range());
    EXPECT_EQ(device.values(), std::vector<float>(3, 3));
    group.barrier();
  });
}

TEST(Init, AGroupOfTheCInterfaceTakesEitherMemory) {
  run_ranks(2, [](int rank) {
    const Place place = take_place();
    const std::int32_t device_index = place.device.value_or(0);
    ddp_init_options how{};
    how.struct_size = sizeof how;
    how.backend = "cpu:cpu,cuda:nccl";
    how.device = place.device ? &device_index : nullptr;
    how.share_device = place.share_device ? 1 : 0;
    ddp_group group = nullptr;
    ASSERT_EQ(ddp_init_process_group(nullptr, &how, &group), DDP_OK) << ddp_last_error();
    ddp_group_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(ddp_group_get_info(group, &info), DDP_OK) << ddp_last_error();
    EXPECT_EQ(info.is_on_gpu, 1);

    const Array<float> device({Device::Kind::cuda, info.device_index}, std::vector<float>(3, rank + 1.0F));
    ASSERT_EQ(ddp_all_reduce(group, device.range().data, 3, DDP_FLOAT32, DDP_SUM, nullptr, nullptr), DDP_OK)
        << ddp_last_error();
    EXPECT_EQ(device.values(), std::vector<float>(3, 3));

    std::vector<float> host(3, rank + 1.0F);
    ddp_collective_options on_host{};
    on_host.struct_size = sizeof on_host;
    on_host.on_host = 1;
    ASSERT_EQ(ddp_all_reduce(group, host.data(), 3, DDP_FLOAT32, DDP_SUM, &on_host, nullptr), DDP_OK)
        << ddp_last_error();
    EXPECT_EQ(host, std::vector<float>(3, 3));
    EXPECT_EQ(ddp_group_destroy(group), DDP_OK) << ddp_last_error();
  });
}

// Whose device was left out.
TEST(Init, ABareDevicePointerIsRefusedAndTheGroupGoesOn) {
  for (const char* backend : {"nccl", "cpu:cpu,cuda:nccl"}) {
    run_ranks(2, [&](int rank) {
      auto group = join(testing::kPatience, {.backend = backend});
      const std::string gpu = std::to_string(group.device().index);
      const Array<float> device(group.device(), std::vector<float>(3, static_cast<float>(rank + 1)));
      const MemoryRange bare(static_cast<float*>(device.range().data), 3);
      const auto error = thrown_by<InvalidArgument>([&] { group.all_reduce(bare); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(),
                  HasSubstr("all_reduce: input says that it is host memory, and is a pointer into that of cuda:" + gpu +
                            "\ntry:   MemoryRange(pointer, count, type, group.device())"));
      group.all_reduce(device.range());
      EXPECT_EQ(device.values(), std::vector<float>(3, 3));
    });
  }
}

TEST(Init, TwoRanksOnOneGpuAreRefusedUnlessTheyMeanIt) {
  run_ranks(2, [](int rank) {
    set_variable("NCCL_HOSTID", std::to_string(rank));
    const auto error =
        thrown_by<InvalidArgument>([] { join(testing::kPatience, {.device = 0, .share_device = false}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("ranks 0 and 1 are both on GPU-"), HasSubstr("InitOptions::share_device")));
    auto group = join(testing::kPatience, {.device = 0, .share_device = true});
    EXPECT_EQ(group.device(), (Device{Device::Kind::cuda, 0}));
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp::nccl_test
