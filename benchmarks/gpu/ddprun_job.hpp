// ddprun with this program as its workers, and what these print.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"

namespace ddp::benchmarks {

// Whether a launcher has started this process.
inline bool is_worker() { return std::getenv("WORLD_SIZE") != nullptr; }

// `ddprun --standalone --nproc-per-node=2`, with the options, of this program with these arguments.
inline std::vector<std::string> job_of_two(const std::vector<std::string>& options,
                                           const std::vector<std::string>& arguments) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words{program.parent_path() / "ddprun", "--standalone", "--nproc-per-node=2",
                                 "--log-dir=/dev/null"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(program);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

class DdprunJob {
 public:
  explicit DdprunJob(const std::vector<std::string>& words) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    out_ = pipe[0];
    auto arguments = arguments_of(words);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    const int error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  }
  ~DdprunJob() {
    end();
    ::close(out_);
  }
  DdprunJob(const DdprunJob&) = delete;
  DdprunJob& operator=(const DdprunJob&) = delete;

  // The next line of a worker; nothing at the end of them all. Throws where none comes in time.
  std::optional<std::string> line(std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        const std::string found = text_.substr(0, end);
        text_.erase(0, end + 1);
        return found;
      }
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd out{out_, POLLIN, 0};
      if (left <= 0 || ::poll(&out, 1, static_cast<int>(left)) == 0)
        throw std::runtime_error("workers say nothing more");
      std::array<char, 4096> buffer{};
      const auto got = ::read(out_, buffer.data(), buffer.size());
      if (got <= 0) return std::nullopt;
      text_.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }

  // Its exit status, for which it waits.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

  // In the ordinary way, which ddprun itself limits.
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    wait();
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string text_;
};

}  // namespace ddp::benchmarks
