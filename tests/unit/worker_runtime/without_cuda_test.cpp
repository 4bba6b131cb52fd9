// libddp as it is built where there is no CUDA toolkit.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(WithoutCuda, TheBackendNcclIsRefusedAndItSaysWhy) {
  for (const char* backend : {"nccl", "cpu:cpu,cuda:nccl"}) {
    SCOPED_TRACE(backend);
    InitOptions options;
    options.backend = backend;
    const auto error = testing::thrown_by<InvalidArgument>([&] { init_process_group(options); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("this build of libddp has no backend nccl: CMake found no CUDA toolkit"),
                                     HasSubstr("try:   a build with CUDA 12 or later")));
  }
}

}  // namespace
}  // namespace ddp
