#include "worker_runtime/process_group/two_backends.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/stand_in_backend.hpp"

namespace ddp::process_group {
namespace {

using test::Calls;
using test::kGpu;
using test::StandInBackend;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::thrown_by;

class TwoBackends : public ::testing::Test {
 protected:
  std::shared_ptr<Calls> on_cpu_ = std::make_shared<Calls>();
  std::shared_ptr<Calls> on_gpu_ = std::make_shared<Calls>();
  ProcessGroup group_ = test::group_over(make_two_backends(std::make_unique<StandInBackend>(on_cpu_, Device{}),
                                                           std::make_unique<StandInBackend>(on_gpu_, kGpu)),
                                         0, 2);
  std::vector<float> here_ = std::vector<float>(4);
  MemoryRange there_{here_.data(), 4, DataType::float32, kGpu};  // never followed
};

TEST_F(TwoBackends, ACallGoesToTheBackendOfItsRanges) {
  group_.all_reduce(here_);
  EXPECT_EQ(on_cpu_->run.size(), 1u);
  EXPECT_THAT(on_gpu_->run, IsEmpty());
  group_.all_reduce(there_);
  EXPECT_EQ(on_gpu_->run.size(), 1u);
  static_cast<void>(group_.scatter_async({}, MemoryRange(there_.data, 2, DataType::float32, kGpu), 1));
  EXPECT_EQ(on_gpu_->submitted.size(), 1u);
  static_cast<void>(group_.gather_async(here_, {}, 1));
  EXPECT_EQ(on_cpu_->submitted.size(), 1u);
}

TEST_F(TwoBackends, WhatIsOfNoRangeIsTheDevices) {
  EXPECT_EQ(group_.device(), kGpu);
  group_.barrier();
  EXPECT_EQ(on_gpu_->run.size(), 1u);
  EXPECT_EQ(group_.allocate(8).device(), kGpu);
  EXPECT_THAT(on_cpu_->run, IsEmpty());
}

TEST_F(TwoBackends, OneCallHasOneDevice) {
  std::vector<float> out(8);
  const auto mixed = thrown_by<InvalidArgument>([&] { group_.all_gather(there_, out); });
  ASSERT_TRUE(mixed);
  EXPECT_THAT(mixed->what(), HasSubstr("all_gather: input is on cuda:1, output on cpu:0"));
  MemoryRange elsewhere = there_;
  elsewhere.device.index = 2;
  const auto unknown = thrown_by<InvalidArgument>([&] { group_.all_reduce(elsewhere); });
  ASSERT_TRUE(unknown);
  EXPECT_THAT(unknown->what(), HasSubstr("input is on cuda:2, the group's memory on cuda:1 or cpu:0"));
  const auto coalesced = thrown_by<InvalidArgument>([&] {
    static_cast<void>(group_.coalesce([&] {
      static_cast<void>(group_.send_async(here_, 1));
      static_cast<void>(group_.send_async(there_, 1));
    }));
  });
  ASSERT_TRUE(coalesced);
  EXPECT_THAT(coalesced->what(), HasSubstr("on host memory and on device memory"));
  static_cast<void>(group_.coalesce([&] {
    static_cast<void>(group_.send_async(there_, 1));
    static_cast<void>(group_.receive_async(there_, 1));
  }));
  EXPECT_EQ(on_gpu_->submitted.size(), 1u);
}

TEST_F(TwoBackends, AFailureOfOneEndsTheOther) {
  on_cpu_->listener("rank 1 ended");
  ASSERT_EQ(on_gpu_->aborts.size(), 1u);
  EXPECT_EQ(on_gpu_->aborts[0].first, "its cpu side failed: rank 1 ended");
  EXPECT_THAT(on_cpu_->aborts, IsEmpty());
  on_gpu_->listener("NCCL gave up");
  ASSERT_EQ(on_cpu_->aborts.size(), 1u);
  EXPECT_EQ(on_cpu_->aborts[0].first, "its cuda side failed: NCCL gave up");
}

TEST_F(TwoBackends, AFailureOfOneIsTheGroups) {
  EXPECT_FALSE(group_.impl()->has_failed());
  on_gpu_->listener("NCCL gave up");
  EXPECT_TRUE(group_.impl()->has_failed());
}

TEST_F(TwoBackends, AbortEndsBoth) {
  group_.abort("enough");
  EXPECT_EQ(on_cpu_->aborts, (std::vector{std::make_pair(std::string("enough"), AbortCause::program)}));
  EXPECT_EQ(on_gpu_->aborts, on_cpu_->aborts);
}

TEST_F(TwoBackends, ItsEndLeavesNoListener) {
  group_ = {};
  EXPECT_FALSE(on_cpu_->listener);
  EXPECT_FALSE(on_gpu_->listener);
}

TEST_F(TwoBackends, ASubGroupHasBothToo) {
  on_cpu_->work = [](const Collective& collective) {  // both ranks give the same color
    const auto* own = static_cast<const std::int64_t*>(collective.input.data);
    auto* to = static_cast<std::int64_t*>(collective.output.data);
    to = std::copy_n(own, collective.input.count, to);
    std::copy_n(own, collective.input.count, to);
  };
  ProcessGroup made = group_.split(0);
  EXPECT_EQ(made.device(), kGpu);
  made.all_reduce(here_);
  made.all_reduce(there_);
  EXPECT_EQ(on_cpu_->of_sub_groups.at(0)->run.size(), 1u);
  EXPECT_EQ(on_gpu_->of_sub_groups.at(0)->run.size(), 1u);
  EXPECT_THROW(group_.split(-1).rank(), InvalidArgument);
}

}  // namespace
}  // namespace ddp::process_group
