#include "bench/job.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/throw_errno.hpp"
#include "base/unique_fd.hpp"
#include "bench/command_line.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kOutputMax = 1 << 20;

// What configures a launcher, or says that it is part of a job: this one is to be alone.
bool is_of_another_job(std::string_view variable) {
  for (const std::string_view prefix : {"DDPRUN_", "PET_", "SLURM_", "TORCHELASTIC_"}) {
    if (variable.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Pointers into texts that outlive them, with the null that execve() asks for.
class PointerList {
 public:
  void add(const char* text) { pointers_.insert(pointers_.end() - 1, const_cast<char*>(text)); }
  char* const* data() { return pointers_.data(); }

 private:
  std::vector<char*> pointers_{nullptr};
};

// In the child: calls that are safe between fork and exec.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* environment, int output,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool can_go_on =
      ::getppid() == parent && ::dup2(input, STDIN_FILENO) >= 0 && ::dup2(output, STDOUT_FILENO) >= 0;
  if (can_go_on) ::execve(program, arguments, environment);
  ::_exit(127);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    if (text.size() < kOutputMax) text.append(part.data(), static_cast<std::size_t>(count));
  }
}

int wait_for_end(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string last_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const auto newline = text.rfind('\n');
  return std::string(newline == std::string_view::npos ? text : text.substr(newline + 1));
}

}  // namespace

Result measure_with(int ranks, const Settings& settings) {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
  const std::string ddprun = own.parent_path() / "ddprun";
  if (::access(ddprun.c_str(), X_OK) != 0) {
    throw Error("there is no ddprun beside " + own.string() +
                "\nwhere: starting the ranks\ntry:   install both programs in the same folder");
  }
  std::vector<std::string> words{ddprun, "--standalone", "--nproc-per-node=" + std::to_string(ranks), own.string()};
  for (const std::string& argument : rank_arguments(settings)) words.push_back(argument);
  PointerList arguments;
  for (const std::string& word : words) arguments.add(word.c_str());
  PointerList environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_of_another_job(*variable)) environment.add(*variable);
  }

  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) base::throw_errno("making a pipe");
  const base::UniqueFd output(pipe[0]);
  base::UniqueFd input(pipe[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) base::throw_errno("starting ddprun");
  if (child == 0) become(ddprun.c_str(), arguments.data(), environment.data(), input.get(), parent);
  input.reset();
  const std::string printed = read_all(output.get());
  const int status = wait_for_end(child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw JobFailed("the measurement with " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") + " failed");
  }
  return from_line(last_line(printed));
}

}  // namespace ddp::bench
