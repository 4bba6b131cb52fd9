#include "worker_runtime/backends/nccl/nccl_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

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

}  // namespace
}  // namespace ddp::nccl_backend
