// Workers that say when they started, through a FIFO of their job. All processes share CLOCK_MONOTONIC.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace ddp::benchmarks {

using Nanoseconds = long long;

Nanoseconds now();

// A worker: says that it has started, then waits for a signal, or ends with 0 once the benchmark is gone.
int be_worker(const char* path);

struct Worker {
  Nanoseconds started = 0;
  pid_t pid = -1;
  int rank = -1;
  int world_size = -1;
};
using Workers = std::vector<Worker>;  // of one round, in the order of their ranks

double ms_until_all_started(const Workers& workers, Nanoseconds since);

// What the workers of one job say of their start.
class Starts {
 public:
  explicit Starts(std::filesystem::path path);
  Starts(const Starts&) = delete;
  Starts& operator=(const Starts&) = delete;
  ~Starts();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  // The workers of the first round of this size that began after `since`; empty when that does not happen in time.
  Workers wait(int world_size, Nanoseconds since, std::chrono::milliseconds limit);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::string text_;  // read and not yet taken out
};

}  // namespace ddp::benchmarks
