// Jobs whose workers are the Python scripts beside this file, run by a Python that has PyTorch.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"

namespace ddp::test {

// Importing PyTorch alone takes 10 s on a loaded machine, and much longer from a cold disk. Below the limit of ctest.
constexpr std::chrono::seconds kPythonPatience{300};

// The interpreter: DDP_TEST_PYTHON, else build/interop/venv, which `./test.sh --interop` makes.
std::string python();

// The path of one of the scripts.
std::string script(const std::string& name);

// As workers of a job want it: PYTHON_EXEC, the long patience.
Job::Options python_job();

// Skips a test, with the reason, where the interpreter lacks a module.
class PythonTest : public ::testing::Test {
 protected:
  void SetUp() override { need_module("torch"); }
  static void need_module(const std::string& name);  // the caller returns if IsSkipped()
};

}  // namespace ddp::test
