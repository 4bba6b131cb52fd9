#include "worker_runtime/process_group/backend_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/process_group.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp::process_group {
namespace {

using ::testing::HasSubstr;
using testing::thrown_by;

std::unique_ptr<Backend> make_none(core::Bootstrap&, const InitOptions&, base::Deadline&) { return nullptr; }

// A build with one backend more than this one has, and without another.
constexpr core::BackendEntry kBackends[] = {
    {.name = "cpu", .device = Device::Kind::cpu, .make = make_none},
    {.name = "nccl", .device = Device::Kind::cuda, .make = make_none},
    {.name = "ucc", .device = Device::Kind::cpu, .make = make_none},
    {.name = "absent", .device = Device::Kind::cuda, .make = nullptr, .absence = "nobody has written it"}};

std::string name_of(const core::BackendEntry* backend) { return backend == nullptr ? "" : backend->name; }

TEST(BackendChoice, TakesOneForEachDeviceInAnyOrder) {
  const struct {
    const char *text, *host, *device;
  } cases[] = {{"", "cpu", ""},
               {"cpu", "cpu", ""},
               {"cpu:cpu", "cpu", ""},
               {"nccl", "", "nccl"},
               {"cuda:nccl", "", "nccl"},
               {"ucc", "ucc", ""},
               {"cuda:nccl,cpu:ucc", "ucc", "nccl"},
               {"cpu:cpu,cuda:nccl", "cpu", "nccl"},
               {"cuda:nccl,cpu:cpu", "cpu", "nccl"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const BackendChoice choice = backend_choice(c.text, kBackends);
    EXPECT_EQ(name_of(choice.host), c.host);
    EXPECT_EQ(name_of(choice.device), c.device);
  }
}

TEST(BackendChoice, RefusesWhatIsNone) {
  for (const char* text :
       {"gloo", "cpu,nccl", "cpu:nccl", "cuda:cpu", "cpu:cpu,", ",cpu:cpu", "cpu:cpu,cpu:cpu", "cpu:cpu,cpu:ucc",
        "cpu:cpu,nccl", "cpu:cpu,cuda:nccl,", "cpu:cpu,cuda:nccl,cpu:cpu", "CPU", " cpu", ","}) {
    SCOPED_TRACE(text);
    const auto error = thrown_by<InvalidArgument>([&] { backend_choice(text, kBackends); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                HasSubstr("there is no backend '" + std::string(text) + "'\ntry:   cpu, nccl, ucc, absent, or"));
  }
}

TEST(BackendChoice, SaysWhyThisBuildDoesNotHaveABackend) {
  for (const char* text : {"absent", "cpu:cpu,cuda:absent"}) {
    const auto error = thrown_by<InvalidArgument>([&] { backend_choice(text, kBackends); });
    ASSERT_TRUE(error);
    EXPECT_STREQ(error->what(), "this build of libddp has no backend absent: nobody has written it");
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
