// Skips every test of a program, with the reason, where there is no GPU, no driver or no NCCL.
//
// A child process looks: ranks are forked later, and CUDA does not live through a fork.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <string>

#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp {
namespace {

// Empty where nothing is.
std::string what_is_missing() {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    return std::string("no GPU that CUDA can use: ") + cudaGetErrorString(code);
  }
  if (count == 0) return "no GPU";
  try {
    nccl_backend::NcclLibrary::of_process();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string ask_a_child() {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) return "pipe failed";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string missing = what_is_missing();
    const auto written = ::write(pipe[1], missing.data(), missing.size());
    ::_exit(written < 0 ? 1 : 0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 512> buffer{};
  for (ssize_t got = 0; (got = ::read(pipe[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? text : "the process that looked for a GPU died";
}

class Requirement : public ::testing::EmptyTestEventListener {
 public:
  void OnTestProgramStart(const ::testing::UnitTest&) override { missing_ = ask_a_child(); }
  void OnTestStart(const ::testing::TestInfo&) override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
  }

 private:
  std::string missing_;
};

[[maybe_unused]] const bool is_required = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Requirement);
  return true;
}();

}  // namespace
}  // namespace ddp
