// At the end of a program over the stand-in: how often it did what a test wants to know, in the file that
// FAKE_GPU_REPORT names, with the process's id behind the name.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fake_gpu/fake_gpu.h"

namespace {

class Report {
 public:
  ~Report() {
    const char* const path = std::getenv("FAKE_GPU_REPORT");
    if (path == nullptr) return;
    std::ofstream file(path + std::string(".") + std::to_string(::getpid()));
    for (const char* const name : {"host synchronisation", "cudaLaunchKernel", "ncclAllReduce"}) {
      file << name << ": " << fake_gpu_calls(name) << "\n";
    }
  }
};

const Report report;

}  // namespace
