#include "worker_runtime/process_group/backend_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/process_group.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp::process_group {
namespace {

using ::testing::HasSubstr;
using testing::thrown_by;

TEST(BackendChoice, TakesOneOrBothInAnyOrder) {
  const struct {
    const char* text;
    bool cpu, nccl;
  } cases[] = {{"", true, false},
               {"cpu", true, false},
               {"cpu:cpu", true, false},
               {"nccl", false, true},
               {"cuda:nccl", false, true},
               {"cpu:cpu,cuda:nccl", true, true},
               {"cuda:nccl,cpu:cpu", true, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const BackendChoice choice = backend_choice(c.text);
    EXPECT_EQ(choice.cpu, c.cpu);
    EXPECT_EQ(choice.nccl, c.nccl);
  }
}

TEST(BackendChoice, RefusesWhatIsNone) {
  for (const char* text : {"gloo", "cpu,nccl", "cpu:nccl", "cuda:cpu", "cpu:cpu,", ",cpu:cpu", "cpu:cpu,cpu:cpu",
                           "cpu:cpu,nccl", "cpu:cpu,cuda:nccl,", "cpu:cpu,cuda:nccl,cpu:cpu", "CPU", " cpu"}) {
    SCOPED_TRACE(text);
    const auto error = thrown_by<InvalidArgument>([&] { backend_choice(text); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("there is no backend '" + std::string(text) + "'\ntry:   cpu, nccl, or"));
  }
}

TEST(InitOptions, AreCheckedBeforeAnythingStarts) {
  InitOptions options;
  options.device = -1;
  const auto error = thrown_by<InvalidArgument>([&] { init_process_group(options); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("device -1"));
  EXPECT_THROW(init_process_group({.backend = "gloo"}), InvalidArgument);
  EXPECT_EQ(init_process_group({.backend = "cpu:cpu"}).device(), Device{});
}

}  // namespace
}  // namespace ddp::process_group
