#include "tests/interop/python.hpp"

#include <cstdlib>

namespace ddp::test {

std::string python() {
  const char* given = std::getenv("DDP_TEST_PYTHON");
  return given != nullptr ? given : std::string(DDP_TEST_SOURCE_DIR) + "/build/interop/venv/bin/python";
}

std::string script(const std::string& name) { return std::string(DDP_TEST_SOURCE_DIR) + "/tests/interop/" + name; }

Job::Options python_job() {
  Job::Options options;
  options.environment = {"PYTHON_EXEC=" + python()};
  options.patience = kPythonPatience;
  return options;
}

void PythonTest::need_module(const std::string& name) {
  const std::string looks_for = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)";
  Job::Options options = python_job();
  options.program = python();
  Job job({"-c", looks_for, name}, options);
  if (job.wait() != 0)
    GTEST_SKIP() << python() << " does not run or has no " << name << "; `./test.sh --interop` installs it";
}

}  // namespace ddp::test
