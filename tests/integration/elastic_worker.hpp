// A worker that trains elastically: tests kill, stop and count it from outside.
//
//   elastic_worker FOLDER [TIMEOUT_MS]
//
// Every step sums something over the ranks that depends on the step and on how many there are, and works it into the
// parameters in a way that minds the order. FOLDER/commits gets a line "STEP SIZE" of each rank for each commit; it
// trains until FOLDER/stop exists. At each round's beginning, and at the end, it prints a line. Other files in FOLDER:
//   die_before_meeting    the first process that finds it removes it and dies before it meets the others
//   fork                  it forks a child that lives for ever, with all that it inherits
//   compute               while it is there rank 0 calls no collective
//
// Where the parameters are, and how they are summed, is for those that derive from it.
#pragma once

#include <ddp/elastic.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace ddp::elastic_test {

constexpr std::size_t kCount = 4096;

inline bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

inline int descriptor_count() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

inline int mapping_count() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// In one write, so that lines of several workers do not mix.
inline void print(const std::string& line) {
  static_cast<void>(!::write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1));
}

// Waits until a file of the folder is gone. Prints `line` once it waits.
inline void wait_while_exists(const std::string& folder, const std::string& file, const std::string& line) {
  const int removals = ::inotify_init1(IN_CLOEXEC);
  ::inotify_add_watch(removals, folder.c_str(), IN_DELETE);
  print(line);
  alignas(inotify_event) char events[4096];
  while (exists(file) && (::read(removals, events, sizeof events) > 0 || errno == EINTR)) {
  }
  ::close(removals);
}

class Worker {
 public:
  Worker(std::string folder, std::chrono::milliseconds timeout) : folder_(std::move(folder)) {
    options_.group.timeout = timeout;
  }
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run() {
    state_.add(step_);
    run_elastic(
        state_,
        [this](ProcessGroup world) {
          try {
            train(world);
          } catch (const Error& error) {
            print("leaves pid=" + std::to_string(::getpid()) + " : " + error.what());
            throw;
          }
        },
        options_);
    print("end pid=" + std::to_string(::getpid()) + " step=" + std::to_string(step_) +
          " parameters=" + text_of_parameters() + " commits=" + std::to_string(state_.commits()) + " ;");
  }

 protected:
  virtual std::vector<std::int64_t> parameters() const = 0;

  // Sums `values` over the ranks. Where the first sum is zero, works the others into the parameters, each of which
  // becomes three times itself and the sum; else returns false, and the parameters are as they were.
  virtual bool update(ProcessGroup& world, const std::vector<std::int64_t>& values) = 0;

  ElasticOptions options_;
  ElasticState state_;

 private:
  void train(ProcessGroup& world) {
    print("begin round=" + std::to_string(world.round().number) + " rank=" + std::to_string(world.rank()) +
          " pid=" + std::to_string(::getpid()) + " size=" + std::to_string(world.size()) +
          " step=" + std::to_string(step_) + " parameters=" + text_of_parameters() +
          " descriptors=" + std::to_string(descriptor_count()) + " mappings=" + std::to_string(mapping_count()) + " ;");
    std::vector<std::int64_t> values(kCount);
    while (true) {
      if (world.rank() == 0 && exists(folder_ + "/compute")) {
        wait_while_exists(folder_, folder_ + "/compute", "computes ;");
      }
      for (std::size_t i = 0; i < kCount; ++i) values[i] = step_ * 1000 + static_cast<std::int64_t>(i);
      values[0] = world.rank() == 0 && exists(folder_ + "/stop") ? 1 : 0;
      if (!update(world, values)) return;
      ++step_;
      state_.commit();
      log_commit(world.size());
    }
  }

  void log_commit(int size) {
    const auto line = std::to_string(step_) + " " + std::to_string(size) + "\n";
    static_cast<void>(!::write(commits_, line.data(), line.size()));
  }

  std::string text_of_parameters() const {
    std::uint64_t sum = 0;
    for (const auto value : parameters()) sum = sum * 31 + static_cast<std::uint64_t>(value);
    return std::to_string(sum);
  }

  std::string folder_;
  int commits_ = ::open((folder_ + "/commits").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  std::int64_t step_ = 0;
};

// What main() returns.
template <class Worker>
int run_worker(char** argv) {
  const std::string folder = argv[1];
  if (::unlink((folder + "/die_before_meeting").c_str()) == 0) ::raise(SIGKILL);
  if (exists(folder + "/fork") && ::fork() == 0) {
    while (true) ::pause();
  }
  try {
    Worker(folder, std::chrono::milliseconds(argv[2] == nullptr ? 60'000 : std::atoi(argv[2]))).run();
    return 0;
  } catch (const std::exception& error) {
    print("error pid=" + std::to_string(::getpid()) + " " + error.what());
    return 3;
  }
}

}  // namespace ddp::elastic_test
