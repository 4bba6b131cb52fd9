#include "worker_runtime/backends/nccl/nccl_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"
#include "worker_runtime/backends/nccl/communicator_config.hpp"

namespace ddp::nccl_backend {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::thrown_by;

Lookup from(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::vector<std::string> one_python(const std::string& folder) { return {folder + "/python3.11"}; }

TEST(NcclLibraryNames, TheVariableIsTheOnlyOneWhereItIsSet) {
  EXPECT_THAT(library_names(from({{"DDP_NCCL_LIBRARY", "/opt/nccl.so"}, {"VIRTUAL_ENV", "/venv"}}), one_python),
              ElementsAre("/opt/nccl.so"));
}

TEST(NcclLibraryNames, TheLoadersComesBeforeThoseOfThePythonWheels) {
  EXPECT_THAT(library_names(from({}), one_python), ElementsAre("libnccl.so.2"));
  EXPECT_THAT(library_names(from({{"CONDA_PREFIX", "/conda"}, {"VIRTUAL_ENV", "/venv"}}), one_python),
              ElementsAre("libnccl.so.2", "/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
                          "/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"));
}

TEST(NcclLibraryNames, PythonFoldersAreThoseThatAreThere) {
  const test::ScratchDirectory scratch;
  for (const char* name : {"python3.12", "python3.9", "python2.7", "perl"}) {
    std::filesystem::create_directory(scratch.path() / name);
  }
  EXPECT_THAT(python_folders_in(scratch.path().string()),
              ElementsAre((scratch.path() / "python3.12").string(), (scratch.path() / "python3.9").string()));
  EXPECT_THAT(python_folders_in((scratch.path() / "nowhere").string()), ElementsAre());
}

TEST(NcclLog, IsAdvisedOrToldWhereItIs) {
  EXPECT_EQ(log_advice(from({})), "NCCL_DEBUG=INFO tells more");
  EXPECT_EQ(log_advice(from({{"NCCL_DEBUG", "WARN"}})), "NCCL_DEBUG=INFO tells more");
  EXPECT_EQ(log_advice(from({{"NCCL_DEBUG", "info"}})), "NCCL's log tells more: it is in this rank's output");
  EXPECT_EQ(log_advice(from({{"NCCL_DEBUG", "TRACE"}, {"NCCL_DEBUG_FILE", "/logs/nccl.%h.%p"}})),
            "NCCL's log tells more: it is in /logs/nccl.%h.%p");
}

TEST(NcclVersion, IsReadInBothForms) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(21903), "2.19.3");
  EXPECT_EQ(version_text(2804), "2.8.4");
}

TEST(NcclLibrary, OneThatIsNotThereIsNamedWithWhatToTry) {
  const auto error = thrown_by<Error>([] {
    NcclLibrary(std::vector<std::string>{"libnccl_nowhere.so.2", "/nowhere/libnccl.so.2"});
  });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), AllOf(HasSubstr("NCCL can't be loaded: /nowhere/libnccl.so.2"),
                                   HasSubstr("looked for libnccl_nowhere.so.2, /nowhere/libnccl.so.2"),
                                   HasSubstr("try:   install NCCL 2.19.3 or later, or set DDP_NCCL_LIBRARY")));
}

TEST(NcclLibrary, ALibraryThatIsNoNcclIsTold) {
  const auto error = thrown_by<Error>([] { NcclLibrary(std::vector<std::string>{"libm.so.6"}); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("libm.so.6 is no NCCL"));
}

TEST(NcclLibrary, TheRealOneServesWhereItIsThere) {
  std::optional<NcclLibrary> library;
  try {
    library.emplace(std::vector<std::string>{"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_GE(library->version(), abi::kVersionOldest);
  EXPECT_THAT(library->name(), HasSubstr("NCCL " + version_text(library->version()) + " at /"));
  EXPECT_THAT(library->describe(abi::Result::remote_error, nullptr), HasSubstr("remote process exited"));
}

TEST(CommunicatorConfig, LeavesToNcclWhatIsNotSet) {
  const abi::Config config = CommunicatorConfig({}, abi::version_code(2, 28, 9)).for_group("group_0/2");
  EXPECT_EQ(config.size, sizeof(abi::Config));
  EXPECT_EQ(config.blocking, 1);
  EXPECT_EQ(config.split_share, 0);
  for (const int field : {config.min_ctas, config.max_ctas, config.traffic_class}) {
    EXPECT_EQ(field, abi::kUndefinedInt);
  }
  EXPECT_STREQ(config.comm_name, "group_0/2");
}

TEST(CommunicatorConfig, HasWhatIsSetAsFarAsNcclReadsIt) {
  const NcclOptions options{.min_ctas = 2, .max_ctas = 8, .traffic_class = 3, .name = "experts"};
  const abi::Config newest = CommunicatorConfig(options, abi::version_code(2, 30, 7)).for_group("group_0");
  EXPECT_EQ(newest.min_ctas, 2);
  EXPECT_EQ(newest.max_ctas, 8);
  EXPECT_EQ(newest.traffic_class, 3);
  EXPECT_STREQ(newest.comm_name, "experts");
  EXPECT_GE(newest.version, 22500U) << "else NCCL takes the traffic class for undefined";
  EXPECT_LT(newest.version, 22700U) << "else it reads what is not there";
  const abi::Config with_class = CommunicatorConfig(options, abi::version_code(2, 26, 5)).for_group("group_0");
  EXPECT_EQ(with_class.traffic_class, 3);
  EXPECT_EQ(with_class.size, offsetof(abi::Config, comm_name));
  const abi::Config oldest = CommunicatorConfig({.min_ctas = 2}, abi::kVersionOldest).for_group("group_0");
  EXPECT_EQ(oldest.min_ctas, 2);
  EXPECT_EQ(oldest.max_ctas, INT_MAX) << "NCCL wants it to be no less";
  EXPECT_EQ(oldest.size, 48U);
  EXPECT_EQ(oldest.version, 21903U);
}

TEST(CommunicatorConfig, RefusesWhatIsOutOfRangeOrTooNew) {
  const auto refusal = [](const NcclOptions& options, int version) {
    const auto error = thrown_by<InvalidArgument>([&] { CommunicatorConfig(options, version); });
    return std::string(error ? error->what() : "none");
  };
  const int newest = abi::version_code(2, 30, 7);
  EXPECT_THAT(refusal({.min_ctas = 0}, newest), HasSubstr("nccl.min_ctas is 0\ntry:   1 or more"));
  EXPECT_THAT(refusal({.min_ctas = 9, .max_ctas = 8}, newest), HasSubstr("nccl.min_ctas is 9, more than max_ctas, 8"));
  EXPECT_THAT(refusal({.traffic_class = -1}, newest), HasSubstr("nccl.traffic_class is -1"));
  EXPECT_THAT(refusal({.traffic_class = 1}, abi::version_code(2, 25, 1)),
              HasSubstr("nccl.traffic_class needs NCCL 2.26.2 or later, and this is 2.25.1"));
}

}  // namespace
}  // namespace ddp::nccl_backend
